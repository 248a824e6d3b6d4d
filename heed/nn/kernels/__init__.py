"""Fast forms of attention, residual norm, linear layers and cross-entropy, on any device."""
