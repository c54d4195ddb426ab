"""Functions of the database, which PostgreSQL alone has.

A function that is released stays as it is: the release before goes on calling it. One that differs gets another name,
in a migration of its own.
"""

from __future__ import annotations

from sqlalchemy import DDL, event

from database.models.base import Base

#: Called by `api.ingest.metric_store`, which has what it is for.
ADD_REPORTS = """
CREATE FUNCTION add_reports(known jsonb, reports jsonb, is_lazy boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    found integer;
    added bigint[];
BEGIN
    IF is_lazy THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    SELECT count(*) INTO found FROM (
        SELECT t.id
        FROM jsonb_to_recordset(known) AS k(id integer, version xid, allocation text)
        JOIN trials t ON t.id = k.id AND t.xmin = k.version
        WHERE (SELECT a.id FROM allocations a WHERE a.trial_id = t.id AND a.ended_at IS NULL
               ORDER BY a.run_id DESC LIMIT 1) IS NOT DISTINCT FROM k.allocation
        ORDER BY t.id
        FOR NO KEY UPDATE OF t
    ) AS locked;
    IF found <> jsonb_array_length(known) THEN
        RETURN NULL;
    END IF;
    WITH inserted AS (
        INSERT INTO metrics (trial_id, run_id, group_name, total_batches, metrics, batch_metrics, searcher_metric,
                             reported_at, archived)
        SELECT r.*, false
        FROM jsonb_to_recordset(reports) AS r(trial_id integer, run_id integer, group_name text, total_batches bigint,
                                              metrics jsonb, batch_metrics jsonb, searcher_metric float8,
                                              reported_at timestamptz)
        ON CONFLICT DO NOTHING
        RETURNING id
    )
    SELECT array_agg(id) INTO added FROM inserted;
    IF coalesce(cardinality(added), 0) <> jsonb_array_length(reports) THEN
        DELETE FROM metrics WHERE id = ANY(added);
        RETURN NULL;
    END IF;
    UPDATE trials t SET total_batches = r.total_batches, summary = r.summary, is_settled = false
    FROM jsonb_to_recordset(known) AS r(id integer, total_batches bigint, summary jsonb)
    WHERE t.id = r.id AND r.summary IS NOT NULL;
    RETURN pg_current_xact_id()::xid::text;
END $$
"""

event.listen(Base.metadata, "after_create", DDL(ADD_REPORTS).execute_if(dialect="postgresql"))
