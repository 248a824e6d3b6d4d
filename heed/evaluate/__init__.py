"""Evaluation of a run on held-out text, and scores of files of translations."""
