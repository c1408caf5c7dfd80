"""OpenAI's API on the wire, with the routes that vLLM adds to it."""
