"""Settings of the communication library, found by trying them on the sizes and groups of a job."""
