"""What a name says: kind of kernel, operation of a collective, framework."""
