"""A run that is still being recorded: its measures as they are written, and what is wrong with it now."""
