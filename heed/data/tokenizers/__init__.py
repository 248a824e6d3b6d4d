"""Text to ids and back: trained and pretrained tokenizers, special tokens, BPE dropout."""
