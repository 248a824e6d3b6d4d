"""Text to tensors: corpora, tokenizers, token stores, batches; knows nothing of models.

Text files become a `Corpus` of records (`corpus`), which the data doctor checks (`doctor`). A
`Tokenizer` (`tokenizers`) turns its texts into ids, kept on disk in a token store (`token_store`).
Batches of ids, masks and targets are drawn from the store (`batching`). `held_out` holds out a dev
set where none is named. `synthetic` generates a bilingual corpus for tests, demos and teaching.
"""
