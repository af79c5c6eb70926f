"""Speculative decoding: drafters, verification as pure functions, and the controller that decides how much to draft.

It knows no backend, no text and no clock: token ids, probabilities and durations are passed in.
"""
