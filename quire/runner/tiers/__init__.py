"""KV blocks outside of the cache, by content hash: where they are kept, and how they get there."""
