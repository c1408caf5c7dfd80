"""Proposed tokens of a step: their proposers, their draws, and the slots of accepted ones."""
