"""What is written into a run folder, and how."""
