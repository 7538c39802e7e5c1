"""What the host threads that launch work do per step: calls that block, calls of the allocator, work done once."""
