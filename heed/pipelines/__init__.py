"""Text in, text out: translation, generation and classification, line by line."""
