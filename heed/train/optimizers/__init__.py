"""Optimizers and learning-rate schedules, by the names a recipe has for them."""
