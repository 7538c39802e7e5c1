"""What was read and analysed, kept in the user's cache directory for a second look."""
