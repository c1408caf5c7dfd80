"""Token ids of requests of any API: conversations, completions, tools."""
