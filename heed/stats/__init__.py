"""Statistics: intervals, variance, comparisons, power and verdicts. Knows nothing of text."""
