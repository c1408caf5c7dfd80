"""Commands that fetch, name, convert, quantize or train models."""
