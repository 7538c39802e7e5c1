"""Scripts of others, run as they are, plain and recorded."""
