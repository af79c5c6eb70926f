"""Chat templates: messages to the text that a model was trained to answer, and how the model marks its thinking.

Templates come with model files and are hostile until shown otherwise: rendering runs in a sandbox with limits. This
package knows no tokenizer, no model name and no file.
"""

from runner.templates.rendering import Piece, Rendered, render
from runner.templates.thinking import reasoning_markers, starts_in_reasoning
from runner.types import ReasoningMarkers

__all__ = [
    "Piece",
    "ReasoningMarkers",
    "Rendered",
    "reasoning_markers",
    "render",
    "starts_in_reasoning",
]
