"""Statistics: intervals, bootstrap, paired tests, correction. Knows nothing of text."""
