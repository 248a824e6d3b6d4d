"""Ids to batches: length buckets, packing, windows, denoising, directions."""
