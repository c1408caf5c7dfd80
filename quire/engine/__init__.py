"""Policy: queueing, scheduling, the KV cache's block tables; no tensors."""
