"""What a typed line of a chat means in every front end: the slash commands' names and words, and \"\"\" around blocks.

Pure functions and one table. What a command does is the front end's business; nothing here knows a terminal.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.errors import UsageError, nearest_hint

BLOCK = '"""'
THINK_LEVELS = ("on", "off", "low", "medium", "high", "auto")
PAGES = ("info", "parameters", "system", "template")


@dataclass(frozen=True)
class CommandWords:
    """One slash command. argument: what may follow its name, "" for nothing."""

    name: str
    help: str
    argument: str = ""
    aliases: tuple[str, ...] = ()


COMMANDS: tuple[CommandWords, ...] = (
    CommandWords("help", "List the commands.", aliases=("?", "h")),
    CommandWords("exit", "Leave.", aliases=("quit", "bye", "q")),
    CommandWords("clear", "Start a new chat with the same model and system prompt."),
    CommandWords("new", "The same as /clear."),
    CommandWords("model", "Go on with another model.", "[NAME]"),
    CommandWords("system", "Show or set the system prompt; none removes it.", "[TEXT]"),
    CommandWords("set", "Show or change a parameter.", "[NAME VALUE]"),
    CommandWords("show", "Show info, parameters, system or template.", "[WHAT]"),
    CommandWords("grammar", "Answer by a JSON schema or a grammar; json, off.", "[PATH]"),
    CommandWords("think", "Thinking: on, off, low, medium, high; show, hide.", "[LEVEL]"),
    CommandWords("regen", "Answer the last message again."),
    CommandWords("edit", "Change the last message and send it again."),
    CommandWords("undo", "Take back the last message and its answer."),
    CommandWords("read", "Add a text file to the next message; off: none.", "PATH"),
    CommandWords("copy", "Copy the last answer, or its n-th code block.", "[N]"),
    CommandWords("save", "Save the chat as .json or .md.", "PATH"),
    CommandWords("load", "Go on with a chat saved as .json.", "PATH"),
    CommandWords("export", "Write the chat to a file of this directory, or to PATH.", "[md|json|PATH]"),
    CommandWords("stats", "Show speed and tokens."),
)
PATH_COMMANDS = tuple(words.name for words in COMMANDS if "PATH" in words.argument)  # a path completes after these
_BY_NAME = {name: words for words in COMMANDS for name in (words.name, *words.aliases)}


@dataclass(frozen=True)
class Typed:
    """A typed line that is a command: its name in the table, and what follows."""

    command: str
    argument: str


def is_command(text: str) -> bool:
    """Whether a typed text is a slash command. Two slashes begin a message with one."""
    line = text.lstrip()
    return line.startswith("/") and not line.startswith("//")


def is_pasted_command(text: str) -> bool:
    """Whether a pasted text is meant as a command: one line, not a comment or a path that other lines follow."""
    return is_command(text) and "\n" not in text.strip()


def parse_command(text: str) -> Typed:
    """What a line such as "/set top_k 20" asks for. Raises UsageError for an unknown command or a needless argument."""
    name, _, argument = text.strip()[1:].partition(" ")
    first_line = name.split("\n", 1)
    if len(first_line) == 2:  # "/system\nlong text"
        name, argument = first_line[0], first_line[1] + (" " + argument if argument else "")
    words = _BY_NAME.get(name.lower())
    if words is None:
        near = nearest_hint("/" + name, ["/" + known.name for known in COMMANDS])
        raise UsageError(f"There is no command /{name}.", hint=f"{near} Begin with // to send a slash.")
    if argument.strip() and not words.argument:
        raise UsageError(f"/{name} takes nothing after it.", hint=f"It is: /{name}")
    return Typed(words.name, argument.strip())


def is_open_block(text: str) -> bool:
    """Whether `text` began a block of lines with \"\"\" and has not ended it."""
    stripped = text.lstrip()
    return stripped.startswith(BLOCK) and BLOCK not in stripped[len(BLOCK) :]


def without_block_marks(text: str) -> str:
    """A message without the \"\"\" around it."""
    stripped = text.strip()
    if not stripped.startswith(BLOCK):
        return text
    body = stripped[len(BLOCK) :]
    return (body.removesuffix(BLOCK) if body.endswith(BLOCK) else body).strip("\n")


def as_message(text: str) -> str:
    """The message that a typed text is: // begins with one slash, \"\"\" around a block is left out."""
    line = text.strip()
    return without_block_marks(line[1:] if line.startswith("//") else text)
