"""Metrics. Every score that heed shows is computed here, and carries its signature."""
