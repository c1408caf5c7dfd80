"""KV blocks on their way from an engine that computes prompts to one that continues them."""
