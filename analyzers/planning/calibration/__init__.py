"""What a recorded run measured, in place of what a plan would assume."""
