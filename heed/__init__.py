"""heed: train Transformers from scratch, see what they attend to, know which change was real."""

__version__ = "0.1.0"
