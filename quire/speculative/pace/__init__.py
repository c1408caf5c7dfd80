"""The number of tokens that are proposed: acceptance and seconds, learned from the steps."""
