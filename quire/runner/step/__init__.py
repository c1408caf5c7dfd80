"""One step: its arrays, the forward pass, drafts, grammars, and the tokens that are drawn."""
