"""One file a family: what its configuration means and what its tensors are called."""
