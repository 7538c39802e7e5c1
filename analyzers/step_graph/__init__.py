"""The operations of a training step and what each waits for."""
