"""From requests of any API to token ids: conversations, completions, tools."""
