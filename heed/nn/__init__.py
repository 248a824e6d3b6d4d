"""The core: attention, positions, masks, merges, the stack. No data, no training.

Read `attention` first (`attend`, then `MultiHeadAttention`), then `plain`: a whole forward pass
with nothing deferred. `positions` and `merges` are its parts. `stack` is the same pass with
rotations, biases and residual branches left to `kernels`, and with the masks of `masks`. `tokens`
says what is known of each token, `cache` keeps keys and values while decoding.
"""
