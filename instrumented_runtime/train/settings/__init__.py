"""The configuration of a training run: nested dataclasses, presets, options."""
