"""Training of draft heads on a target's own answers: torch for heads, the engine for the rest."""
