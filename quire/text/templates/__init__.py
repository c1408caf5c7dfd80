"""Chat templates: messages to prompt text, rendered in processes with limits."""
