"""The recipe of quire-tiny, the embedded demo model: corpus, tokenizer, trainer, evaluation."""
