"""Ahead-of-time compilation of a recipe's Triton kernels, beside the first steps of training.

`compiling_ahead` is the whole interface of training. A command may call `start_early` before it
imports torch, and `stop_compiling` where compilation would disturb what it measures.
"""

from heed.train.precompile.start import compiling_ahead, start_early, stop_compiling

__all__ = ["compiling_ahead", "start_early", "stop_compiling"]
