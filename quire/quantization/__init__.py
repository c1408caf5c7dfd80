"""Weight formats: what the bits of quantized checkpoints mean, and rounding floats to them."""
