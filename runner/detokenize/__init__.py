"""Token ids to the text of an answer: UTF-8 across tokens, stop strings, and the thought apart from the answer.

All of it works on a stream and gives the same whatever pieces the stream comes in. It knows no template and no
backend beyond its tokenizer; reasoning markers are values that it is given.
"""

from runner.detokenize.reasoning import AnswerPiece, ReasoningSplitter, joined_pieces
from runner.detokenize.stream import AnswerStream
from runner.detokenize.text import Detokenizer, StopMatcher

__all__ = ["AnswerPiece", "AnswerStream", "Detokenizer", "ReasoningSplitter", "StopMatcher", "joined_pieces"]
