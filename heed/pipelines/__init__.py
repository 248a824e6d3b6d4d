"""Pipelines: text in, text out, for translation, generation and classification.

`translate`, `generate` and `classify` hold one pipeline each: from text to ids, through the model,
back to text. `split_long` splits texts that are longer than the model's limit. `line_io` holds the
loop that the three commands share: read lines, run a pipeline, write one line per result.
"""
