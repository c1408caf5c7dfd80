"""Plain data shared by all packages: configuration, requests, outputs, errors; no tensors."""
