"""The definition of every op, in plain torch; never optimised."""
