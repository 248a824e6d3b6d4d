"""The run folder: what is in it, how it is read, listed and loaded."""
