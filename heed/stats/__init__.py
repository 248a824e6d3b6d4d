"""Intervals and paired tests. Knows nothing of text."""
