"""Making quantized matrices of floats: one method a file, arithmetic alone; numpy."""
