"""Comes later: importing it says what to do until then."""

from determined._later import WITH_DETERMINED, gone

raise gone("determined.pytorch.deepspeed", f"use determined.pytorch, or {WITH_DETERMINED}")
