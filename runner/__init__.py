"""runner: run language models on your own machine from a terminal."""

__version__ = "0.1.0"
