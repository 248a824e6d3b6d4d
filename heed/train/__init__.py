"""Training: optimizers, schedules, checkpoints and the loop."""
