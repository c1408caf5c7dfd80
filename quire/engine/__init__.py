"""Policy: queueing, scheduling and the KV cache's block tables; no tensors.

The engine asks the scheduler for a plan, an executor for its result, and tells what became of each
request. It is tested without a model.
"""
