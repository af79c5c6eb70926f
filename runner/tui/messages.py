"""What the engine, the job queue and the machine tell the screens: one small message each.

They are posted to the app from threads, and the app hands them to every mode screen (screens/mode.py). Text is raw.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from textual.message import Message

from runner.config import LoadOptions
from runner.errors import RunnerError
from runner.events import ChatEvent, Loaded, LoadEvent
from runner.transcript import Turn

Mode = Literal["chat", "models", "bench", "doctor"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
EngineState = Literal["empty", "loading", "ready", "answering", "stopping"]


@dataclass
class EngineMessage(Message):
    """Something about the engine of the chat. state: what it is doing from now on.

    "empty": no model is loaded: the next question loads one.
    """

    state: EngineState


@dataclass
class LoadBegan(EngineMessage):
    model: str


@dataclass
class LoadStep(EngineMessage):
    """Progress or a Notice while a model is being loaded."""

    event: LoadEvent


@dataclass
class LoadEnded(EngineMessage):
    """It was loaded; or not, for `error` or because it was cancelled.

    loaded: what there is now: after a failure the model before, when that was not let go yet, and None otherwise.
    options: how it was loaded, or was to be. next_model: what answers the next question, when that is another one
    than `model`: the one before, which did load.
    """

    model: str
    loaded: Loaded | None
    error: RunnerError | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    next_model: str = ""


@dataclass
class Unloaded(EngineMessage):
    """The model was unloaded to make room, or its process died while nobody asked it anything."""

    why: str


@dataclass
class Lent(EngineMessage):
    """A benchmark of `model` has the machine: nothing is loaded, and so nothing is answered, until TakenBack."""

    model: str


@dataclass
class TakenBack(EngineMessage):
    """A benchmark had the machine, and is over: the next question loads the model."""


@dataclass
class AnswerBegan(EngineMessage):
    """A question was accepted; its answer comes. question: the user's turn. is_new: it was not in the chat before."""

    question: Turn
    is_new: bool


@dataclass
class AnswerStep(EngineMessage):
    event: ChatEvent


@dataclass
class AnswerStopping(EngineMessage):
    """The answer is to stop. Its end, which a hung engine puts off, is AnswerEnded."""


@dataclass
class AnswerEnded(EngineMessage):
    """turn: the answer as it is kept, None when nothing of it came. unsent: a question that was not accepted.

    error: what ended it, None when it ended by itself or was stopped.
    """

    turn: Turn | None
    error: RunnerError | None = None
    unsent: str = ""


@dataclass
class OpenModel(Message):
    """The user wants to chat with this model: a name that the registry resolves. options None: as before."""

    model: str
    options: LoadOptions | None = None


@dataclass
class BenchModel(Message):
    """The user wants this model measured."""

    model: str


@dataclass
class ResumeChat(Message):
    """The user wants to go on with a kept chat. id: of its session in the store."""

    id: str


@dataclass
class GoTo(Message):
    """The user wants another mode."""

    mode: Mode


@dataclass
class Preferred(Message):
    """The user chose how the interface is to look, of what it remembers."""


@dataclass
class Write(Message):
    """The user writes to the model where there is no field for it. text: what comes next."""

    text: str
