"""A file's small part on disk: made where the file lies, merged elsewhere."""
