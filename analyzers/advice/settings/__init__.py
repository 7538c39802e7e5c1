"""What frameworks call their settings, with default, versions and source: one table per framework."""
