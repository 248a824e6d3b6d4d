"""What training needs before its first step: data, tokenizer, model, initial weights."""
