"""What gloo itself does not record: its collectives, with group, sequence, size and end."""
