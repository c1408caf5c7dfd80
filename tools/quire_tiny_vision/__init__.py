"""What made quire-tiny-vision: pictures and questions of its own making, its training, its test."""
