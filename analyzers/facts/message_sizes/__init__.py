"""Sizes of messages that nothing recorded: estimated from what they carry."""
