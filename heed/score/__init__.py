"""Scores: one path, wherever they are shown, with the metric's signature beside them."""
