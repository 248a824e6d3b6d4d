"""How a training step is launched: eagerly, as CUDA graphs, or compiled."""
