"""How many tokens are proposed: acceptance and seconds, learned from the steps."""
