"""The core: attention, positions, masks, merges, the stack. No data, no training."""
