"""Text to tensors. Knows nothing of models."""
