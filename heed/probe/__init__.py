"""Probes: what a trained model attends to."""
