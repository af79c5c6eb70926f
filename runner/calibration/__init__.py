"""Calibration: rounding a model's matrices with an eye on what it computes, on text that it writes itself or is given.

text.py and own_text.py make the token ids, moments.py sums up what layers see, producer.py rounds layer after layer.
"""
