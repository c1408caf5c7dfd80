"""Commands that answer in the terminal: one prompt, several, or a conversation."""
