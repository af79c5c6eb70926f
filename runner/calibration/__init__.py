"""Calibration: rounding a model's matrices with an eye on what it computes, on text that it writes itself or is given.

text.py makes the token ids, moments.py sums up what the layers see, producer.py rounds layer after layer.
"""
