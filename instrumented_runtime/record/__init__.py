"""Recording a job: sessions, captures, ranges, the run folder."""
