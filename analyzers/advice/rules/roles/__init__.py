"""Jobs made of roles."""
