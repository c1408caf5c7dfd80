"""CPU implementation: numpy arrays on top of the native kernels."""
