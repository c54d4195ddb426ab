"""Brings the records of a cluster of Determined over, from its PostgreSQL (ADR 51).

`source` reads, `people`, `places`, `work` and `registry` say what becomes of a row, `target` writes, `metrics`, `logs`
and `searches` are what is no matter of one row. `kinds` lists all, `activities` is what the Import workflow calls.
"""
