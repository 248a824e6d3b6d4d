"""Studies: runs that answer one question, and the comparison of their recipes."""
