"""What is recorded while a job runs: one capture per file; none of them can stop the job."""
