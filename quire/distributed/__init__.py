"""Ranks that compute one model together: their collectives, connections and processor cores."""
