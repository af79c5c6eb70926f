"""How models mark their thinking: found in the template's text, from one table.

It reads no model name. What is done with the markers while an answer streams is detokenize.py's business.
"""

from __future__ import annotations

from typing import Any

from runner.config import Think
from runner.types import ChannelMarkers, ReasoningMarkers


def _tags(open_: str, close: str, closing_text: str) -> ReasoningMarkers:
    return ReasoningMarkers(open=open_, close=close, closing_text=closing_text)


_HARMONY = ReasoningMarkers(
    open="<|channel|>analysis<|message|>",
    close="<|end|>",
    closing_text="<|end|><|start|>assistant<|channel|>final<|message|>",
    channels=ChannelMarkers(
        turn="<|start|>",
        channel="<|channel|>",
        body="<|message|>",
        end="<|end|>",
        thoughts=frozenset({"analysis"}),
        answer="final",
    ),
)

# (all of these texts are in the template, then these are its markers); the first row that matches counts.
_TABLE: tuple[tuple[tuple[str, ...], ReasoningMarkers], ...] = (
    (("<|channel|>", "<|message|>", "analysis"), _HARMONY),
    (("<|channel>thought", "<channel|>"), _tags("<|channel>thought", "<channel|>", "\n<channel|>")),
    (("[THINK]", "[/THINK]"), _tags("[THINK]", "[/THINK]", "[/THINK]")),
    (("<seed:think>", "</seed:think>"), _tags("<seed:think>", "</seed:think>", "</seed:think>")),
    (
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        _tags("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    ),
    # DeepSeek-R1's first template has the closing tag only: it cuts thoughts out of the history.
    (("</think>",), _tags("<think>", "</think>", "\n</think>\n\n")),
)


def reasoning_markers(template: str | None) -> ReasoningMarkers | None:
    """The markers that the model of this template thinks between, or None when the template names none."""
    if template is None:
        return None
    return next((markers for texts, markers in _TABLE if all(text in template for text in texts)), None)


def starts_in_reasoning(text: str, markers: ReasoningMarkers) -> bool:
    """Whether the rendered prompt `text` ends inside a thought: the template has already opened it."""
    return text.rstrip().endswith(markers.open)


def think_variables(think: Think, template: str) -> dict[str, Any]:
    """What templates read to turn thinking on and off. "auto" sets nothing: the template's own default holds.

    enable_thinking is Qwen's, SmolLM's and most others' name, thinking is DeepSeek's and Granite's, reasoning_effort
    is gpt-oss's, which always thinks: "off" is its lowest effort.
    """
    if think == "auto":
        return {}
    is_on = think != "off"
    variables: dict[str, Any] = {"enable_thinking": is_on, "thinking": is_on}
    if think in ("low", "medium", "high"):
        variables["reasoning_effort"] = think
    elif not is_on and reasoning_markers(template) is _HARMONY:
        variables["reasoning_effort"] = "low"
    return variables
