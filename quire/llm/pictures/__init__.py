"""Pictures of requests: found by their URLs, decoded in processes of their own, put in prompts."""
