"""How good a model's numbers are: perplexity, and divergence from a reference model on the same tokens.

windows, divergence, intervals and vocabulary are pure; bits reads headers; logits_file keeps a reference's logits on
disk; evaluate runs backends; process does that in a child. It knows no front end and no particular backend.

How it is measured, which is what llama.cpp's `llama-perplexity` does with and without `--kl-divergence`: the text's
tokens are cut into windows of 512, each read from an empty cache; of each the first 257 are context alone and the
other 255 are scored, so that a score has 257 to 511 tokens before it. A model that wants its BOS token has it in the
place of each window's first token. `--stride` and `--context` change that.
"""
