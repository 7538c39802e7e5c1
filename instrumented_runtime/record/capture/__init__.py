"""Captures that run during a job, one per file; a failing capture never stops the job."""
