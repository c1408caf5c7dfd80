"""A model over several ranks: what each of them holds of it, and how it is read and joined."""
