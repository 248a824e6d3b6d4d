"""The core: attention, positions, merges, the stack. No data, no files, no training."""
