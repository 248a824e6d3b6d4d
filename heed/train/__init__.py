"""Training: from a recipe to a run folder, exact and recoverable."""
