"""The KV cache as blocks: their tables, hashes, reference counts and eviction."""
