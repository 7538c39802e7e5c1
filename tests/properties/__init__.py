"""What must hold for every recording, on jobs made up by hypothesis."""
