"""Heads that draft from the hidden states of the model they draft for: EAGLE-3, and the one that a checkpoint ships.

They import torch; this file does not. They know nothing of how their drafts are verified.
"""
