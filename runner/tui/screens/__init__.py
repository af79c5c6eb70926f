"""One screen a file: the four modes, and what opens over them."""
