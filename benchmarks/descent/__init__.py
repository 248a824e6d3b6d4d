"""Optimizers compared: each with as many learning rates, then with fresh seeds at its own best."""
