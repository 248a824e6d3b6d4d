"""Metrics: one path, wherever a score is shown, with its signature beside it."""
