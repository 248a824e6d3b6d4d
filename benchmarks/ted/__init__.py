"""The translation results: which systems there are; how they are trained, tested and told."""
