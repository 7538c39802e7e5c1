"""What the log of a job alone tells: its steps, what they lose, and when they changed."""
