"""Several engines of one model as one: who gets which request, and what becomes of lost ones."""
