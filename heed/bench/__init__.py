"""Benchmarks of training on this machine: tokens/s, share of peak FLOP/s, start-up, memory."""
