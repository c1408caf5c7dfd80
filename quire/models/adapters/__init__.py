"""Adapters of low rank: read from PEFT's folders and fitted to a decoder."""
