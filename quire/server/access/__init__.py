"""API keys and the limits on requests: permissions, amounts per minute, and queue length."""
