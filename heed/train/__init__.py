"""Training: from a recipe to a run folder, exact and recoverable.

`run` starts or resumes. `prepare.setup` makes the inputs, `build_loop` the loop. `loop` repeats
`step`, which calls `objective` on batches of `loader` and changes `state`. `recorder` writes
metrics, evaluations and checkpoints.
"""
