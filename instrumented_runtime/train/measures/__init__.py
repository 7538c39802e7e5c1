"""What a training run measures about itself, per step and rank; see `meter.StepRecord` for the fields."""
