"""A run that is still being recorded, as one page that follows it."""
