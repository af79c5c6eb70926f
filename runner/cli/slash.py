"""The chat's slash commands: one function each; their names and words are chat_commands.py's, as in the TUI.

They act on a Repl (repl.py) and print what was asked for on stderr. A function returns False to leave the chat. They
know nothing of keys or of how a message was typed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from runner import set_values
from runner.chat_commands import COMMANDS, THINK_LEVELS, is_command, parse_command
from runner.chat_pages import info_page, parameters_page, stats_page
from runner.cli import clipboard, render
from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.errors import UsageError
from runner.message_files import NO_FILES, Refused, file_to_read, path_of, read

if TYPE_CHECKING:
    from runner.cli.repl import Repl


_WITHOUT_MODEL = ("help", "exit")


def needs_model(text: str) -> bool:
    """Whether a typed text waits for a model that is still being loaded: a message does, and most commands."""
    if not is_command(text):
        return bool(text.strip())
    try:
        return parse_command(text).command not in _WITHOUT_MODEL
    except UsageError:
        return False  # it is refused in any case


def run_command(repl: Repl, text: str) -> bool:
    """Do what a line such as "/set top_k 20" says. False: leave. Raises UsageError for an unknown command."""
    typed = parse_command(text)
    return FUNCTIONS[typed.command](repl, typed.argument) is not False


# --- the chat ------------------------------------------------------------------------------------------------------


def _help(_repl: Repl, _argument: str) -> None:
    rows = [(f"/{words.name} {words.argument}".rstrip(), words.help) for words in COMMANDS]
    width = max(len(left) for left, _ in rows)
    lines = [f"{left:<{width}}  {text}" for left, text in rows]
    lines += [
        "",
        'In a message, @PATH adds a file: @notes.txt, @"my notes.txt".',
        'Ctrl+J begins a new line; so does Enter between """ and """.',
        "Ctrl+C stops an answer; pressed again, it ends the engine. Ctrl+D leaves.",
    ]
    render.say("\n".join(lines))


def _exit(_repl: Repl, _argument: str) -> bool:
    return False


def _clear(repl: Repl, _argument: str) -> None:
    is_wanted = repl.conversation.is_kept
    is_kept = repl.conversation.clear()
    repl.begin_anew()
    render.narrate("A new chat. The one before is kept." if is_kept else "A new chat.")
    _warn_of_loss(is_wanted=is_wanted, is_kept=is_kept)


def _warn_of_loss(*, is_wanted: bool, is_kept: bool) -> None:
    if is_wanted and not is_kept:
        render.warn("The chat before could not be kept, or not whole.")


def _model(repl: Repl, argument: str) -> None:
    if argument:
        loaded = repl.loader.load(argument)
        repl.conversation.use(repl.loader.engine, argument)
        repl.conversation.configure(params=repl.params_for(loaded.sampling))
    render.say(repl.header())


def _system(repl: Repl, argument: str) -> None:
    if not argument:
        render.say(repl.conversation.system or "There is no system prompt. /system TEXT sets one.")
        return
    repl.conversation.set_system(None if argument.lower() == "none" else argument)
    render.narrate("The system prompt is removed." if argument.lower() == "none" else "The system prompt is set.")


# --- settings ------------------------------------------------------------------------------------------------------


def _configurations(repl: Repl) -> tuple[SamplingParams, ChatOptions, LoadOptions]:
    return repl.conversation.params, repl.conversation.options, repl.loader.options


def _set(repl: Repl, argument: str) -> None:
    name, _, text = argument.partition(" ")
    if not name:
        render.say(_parameters(repl))
        return
    field = set_values.field_name(name)
    owner = next(values for values in _configurations(repl) if hasattr(values, field))
    if not text.strip():
        render.say(f"{field} {set_values.shown(getattr(owner, field))}")
        return
    change: dict[str, Any] = {field: set_values.parsed(field, text.strip())}
    if isinstance(owner, SamplingParams):
        repl.conversation.configure(params=dataclasses.replace(owner, **change))
        repl.own_params.update(change)
    elif isinstance(owner, ChatOptions):
        repl.conversation.configure(options=dataclasses.replace(owner, **change))
    else:
        repl.loader.reload_with(**change)
    render.narrate(f"{field} is {set_values.shown(change[field])}")


def _grammar(repl: Repl, argument: str) -> None:
    if not argument:
        render.say(f"grammar {set_values.shown(repl.conversation.params.grammar)}")
        return
    from runner.grammar_text import named  # what checks a grammar is imported with the first

    grammar = named(argument, repl.directory)
    repl.conversation.configure(params=dataclasses.replace(repl.conversation.params, grammar=grammar))
    repl.own_params["grammar"] = grammar
    render.narrate(f"grammar is {set_values.shown(grammar)}")


def _think(repl: Repl, argument: str) -> None:
    word = argument.lower()
    if word in ("show", "hide"):
        repl.has_thoughts = word == "show"
        render.narrate("Thoughts are shown." if repl.has_thoughts else "Thoughts are hidden.")
    elif word in THINK_LEVELS:
        change: dict[str, Any] = {"think": word}
        repl.conversation.configure(options=dataclasses.replace(repl.conversation.options, **change))
        render.narrate(f"Thinking: {word}")
    elif word:
        raise UsageError(f"/think {argument}?", hint=f"One of: {', '.join(THINK_LEVELS)}, show, hide.")
    else:
        render.say(f"Thinking: {repl.conversation.options.think}; {'shown' if repl.has_thoughts else 'hidden'}")


def _parameters(repl: Repl) -> str:
    return parameters_page(*_configurations(repl))


def _info(repl: Repl) -> str:
    kept = repl.conversation.session_id or "not kept yet" if repl.conversation.is_kept else "not kept"
    return info_page(repl.loader.ensure(), kept)


def _show(repl: Repl, argument: str) -> None:
    pages: dict[str, Callable[[Repl], str]] = {
        "info": _info,
        "parameters": _parameters,
        "system": lambda chat: chat.conversation.system or "There is no system prompt.",
        "template": lambda chat: chat.loader.ensure().info.chat_template or "The model has no chat template.",
    }
    name = argument.lower() or "info"
    if name not in pages:
        raise UsageError(f"/show {argument}?", hint=f"One of: {', '.join(pages)}.")
    render.say(pages[name](repl))


# --- turns ---------------------------------------------------------------------------------------------------------


def _regenerate(repl: Repl, _argument: str) -> None:
    repl.answer(repl.conversation.regenerate)


def _edit(repl: Repl, _argument: str) -> None:
    last = next((turn.content for turn in reversed(repl.conversation.turns) if turn.role == "user"), None)
    if last is None:
        raise UsageError("There is no message to edit.", hint="Write one first.")
    edited = repl.edit_text(last)
    if edited is None:
        repl.refill_with(last, is_edit=True)
    elif edited.strip() in ("", last.strip()):
        render.narrate("Nothing was changed.")
    else:
        repl.say(edited, is_edit=True)


def _undo(repl: Repl, _argument: str) -> None:
    taken = " ".join(repl.conversation.undo().split())
    render.narrate(f"Taken back: {render.clip(taken, 60)}")


def _read(repl: Repl, argument: str) -> None:
    path = file_to_read(argument, repl.directory)
    if path is None:
        repl.attachments.clear()
        render.narrate(NO_FILES)
        return
    found = read(path.name, path)
    if isinstance(found, Refused):
        raise found.error
    if found.notice:
        render.warn(found.notice)
    repl.attachments.append(found)
    render.narrate(f"{found.words} goes with your next message.")


def _copy(repl: Repl, argument: str) -> None:
    if argument and not argument.isdecimal():
        raise UsageError(f"/copy {argument}?", hint="It takes the number of a code block, or nothing.")
    text = repl.conversation.copy(int(argument) if argument else None)
    ways = clipboard.copy(text)
    if ways:
        render.narrate(f"Copied {len(text)} characters (by {' and '.join(ways)}).")
    else:
        render.warn("There is no clipboard here.", "/export PATH writes the chat to a file.")


# --- files ---------------------------------------------------------------------------------------------------------


def _save(repl: Repl, argument: str) -> None:
    if not argument:
        raise UsageError("/save needs the name of a file.", hint="It is: /save PATH.json (or .md)")
    render.narrate(f"Saved as {repl.conversation.save(path_of(argument, repl.directory))}")


def _load(repl: Repl, argument: str) -> None:
    if not argument:
        raise UsageError("/load needs the name of a file.", hint="It is: /load PATH.json")
    is_wanted = repl.conversation.is_kept
    is_kept = repl.conversation.load(path_of(argument, repl.directory))
    repl.begin_anew()
    _warn_of_loss(is_wanted=is_wanted, is_kept=is_kept)
    render.say(repl.recap())


def _export(repl: Repl, argument: str) -> None:
    if not repl.conversation.turns:
        raise UsageError("There is nothing to export.", hint="Ask something first.")
    if argument in ("", "md", "json"):
        argument = f"chat-{repl.conversation.session_id or 'export'}.{argument or 'md'}"
    render.narrate(f"Exported as {repl.conversation.save(path_of(argument, repl.directory))}")


def _stats(repl: Repl, _argument: str) -> None:
    render.say(stats_page(repl.totals))


FUNCTIONS: dict[str, Callable[[Repl, str], bool | None]] = {
    "help": _help,
    "exit": _exit,
    "clear": _clear,
    "new": _clear,
    "model": _model,
    "system": _system,
    "set": _set,
    "show": _show,
    "grammar": _grammar,
    "think": _think,
    "regen": _regenerate,
    "edit": _edit,
    "undo": _undo,
    "read": _read,
    "copy": _copy,
    "save": _save,
    "load": _load,
    "export": _export,
    "stats": _stats,
}
