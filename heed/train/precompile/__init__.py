"""Ahead-of-time compilation of a recipe's Triton kernels, beside the first steps of training."""
