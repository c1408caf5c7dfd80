"""KV blocks outside of the cache, by content hash: the tiers that keep them, and their threads."""
