"""Training a drafter: an EAGLE-3 head learns, from text that the target writes itself, to guess what the target writes.

prompts.py and chats.py ask, corpus.py keeps the answers, states.py shows what the target computes on them, unrolled.py
and train.py teach the head, measure.py says how much of its drafts the target accepts, make.py puts all in order.
"""
