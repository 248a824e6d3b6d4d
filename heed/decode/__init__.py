"""Decoding: from a model's logits to tokens, by greedy search, beam search or sampling.

Read `plain` first: greedy and beam search as a course writes them. `search` is the fast loop with
the same results: it takes inputs in batches (`batch_plan`) and repeats one step until all inputs
are finished. A step asks each model for the next logits (`model_step`) and a strategy for the next
tokens (`strategy`, with `greedy`, `beam` and `sampling`), and both keep all their tensors in one
decode state (`state`). The result is a list of `Hypothesis` per input. `settings` builds a strategy
from a recipe's `[decode]`. Around that: `streaming` and `detokenize` report text while it is
generated, `alignment` links source and target words, `cuda_graph` and `cpu_threads` make it fast,
`engine_choice` and `ctranslate2_engine` replace it.
"""
