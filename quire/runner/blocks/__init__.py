"""KV blocks outside of the cache: tiers that keep them, and transfers between engines."""
