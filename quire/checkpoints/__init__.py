"""Files of weights: safetensors, GGUF, ranks' files, the packed cache; readers and writers.

Tensors by name, with types and shapes that are checked before they are used. Which tensor is which
part of a model is decided in ``models``.
"""
