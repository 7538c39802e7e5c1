"""Where ranks lie, and what the links between them can carry."""
