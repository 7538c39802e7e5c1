"""A model of PyTorch's caching allocator, which replays a recorded history under a setting."""
