"""Weight formats of other programs: layouts, exact unpacking, quantizers."""
