"""Two runs compared: which is faster, by how much beyond chance, and what moved."""
