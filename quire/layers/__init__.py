"""Building blocks of models, written once above the kernels."""
