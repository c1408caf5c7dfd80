"""A step as arrays: its rows, their positions, tokens, trees and sampling settings."""
