"""Two runs held against each other: is it faster, by how much beyond chance, and what moved."""
