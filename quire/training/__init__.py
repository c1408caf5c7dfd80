"""Training of draft heads on a target's own answers, and fine-tuning of models.

torch computes heads and gradients, the engine computes hidden states. A run that was stopped goes
on from its work folder.
"""
