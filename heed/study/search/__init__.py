"""The search of nuisance keys: spaces, samplers, pruning, finalists, and which trials come next."""
