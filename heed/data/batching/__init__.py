"""Batches of ids from a token store: buckets, packing, random windows, directions, denoising.

`batch` holds the tensors of one batch and builds them for each task. `bucketed` groups examples of
similar length into the few shapes that `length_buckets` chooses. `packing` and `random_windows`
fill every row for language models. `directions` and `denoising` are further translation tasks.
"""
