"""Adapters of low rank in linears, norms, embeddings and experts, by the rows of a step."""
