"""Statistics: bootstrap intervals and paired tests. Knows nothing of text."""
