"""`gpuscope tune` on plain scripts, each with one removable slowness or none."""
