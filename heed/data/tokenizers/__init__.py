"""Tokenizers: text to ids and back, trained here or pretrained; special tokens, BPE dropout.

`tokenizer` is the interface for all kinds; `vocabulary` learns what it knows. `pretrained` wraps
tokenizers trained elsewhere. `bpe_dropout` samples the subword segmentations that training redraws
each epoch. `word_cache` speeds up encoding; `treebank` holds the word-splitting rules.
"""
