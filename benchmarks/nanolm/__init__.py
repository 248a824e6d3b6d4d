"""The results of `lm/nano`: positions, merges, and what a merge that leaks does."""
