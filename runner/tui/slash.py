"""The chat's slash commands in the terminal interface; their names and words are chat_commands.py's, as in the CLI.

Each function acts on the chat's screen. They know nothing of keys or of how a command was typed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner import set_values
from runner.chat_commands import PAGES, THINK_LEVELS, parse_command
from runner.chat_pages import info_page, parameters_page, stats_page
from runner.config import ChatOptions, Grammar, LoadOptions, SamplingParams
from runner.errors import UsageError
from runner.message_files import NO_FILES, Refused, file_to_read, path_of, read

if TYPE_CHECKING:
    from runner.tui.screens.chat_surface import ChatSurface


def run_command(chat: ChatSurface, text: str) -> None:
    """Do what a line such as "/set top_k 20" says. Raises RunnerError, UsageError for an unknown command."""
    typed = parse_command(text)
    FUNCTIONS[typed.command](chat, typed.argument)


# --- the chat ------------------------------------------------------------------------------------------------------


def _help(chat: ChatSurface, _argument: str) -> None:
    chat.do("app.help")


def _exit(chat: ChatSurface, _argument: str) -> None:
    chat.do("app.quit")


def _clear(chat: ChatSurface, _argument: str) -> None:
    chat.sessions.begin()


def _model(chat: ChatSurface, argument: str) -> None:
    if argument:
        chat.open_model(argument)
    else:
        chat.page("model", _info(chat))


def _system(chat: ChatSurface, argument: str) -> None:
    conversation = chat.engine.conversation
    if not argument:
        chat.page("system prompt", conversation.system or "There is no system prompt. /system TEXT sets one.")
        return
    chat.refuse_while_answering()
    is_removed = argument.lower() == "none"
    conversation.set_system(None if is_removed else argument)
    chat.recount()
    chat.tell("The system prompt is removed." if is_removed else "The system prompt is set.")


# --- settings ------------------------------------------------------------------------------------------------------


def _configurations(chat: ChatSurface) -> tuple[SamplingParams, ChatOptions, LoadOptions]:
    return chat.engine.conversation.params, chat.engine.conversation.options, chat.engine.options


def _set(chat: ChatSurface, argument: str) -> None:
    name, _, text = argument.partition(" ")
    if not name:
        chat.page("parameters", parameters_page(*_configurations(chat)))
        return
    field = set_values.field_name(name)
    owner = next(values for values in _configurations(chat) if hasattr(values, field))
    if not text.strip():
        chat.tell(f"{field} is {set_values.shown(getattr(owner, field))}")
        return
    change: dict[str, Any] = {field: set_values.parsed(field, text.strip())}
    changed = dataclasses.replace(owner, **change)
    chat.refuse_while_answering()
    verb = "is"
    if isinstance(changed, LoadOptions):
        verb = "is to be"  # the load that this takes may fail
        chat.engine.open(chat.engine.model, changed)
    elif isinstance(changed, ChatOptions):
        chat.engine.configure(options=changed)
    else:
        chat.engine.configure(own_params={**chat.engine.own_params, **change})
    chat.recount()
    chat.tell(f"{field} {verb} {set_values.shown(change[field])}")


def _grammar(chat: ChatSurface, argument: str) -> None:
    if not argument:
        chat.tell(f"grammar is {set_values.shown(chat.engine.conversation.params.grammar)}")
        return
    from runner.grammar_text import named  # what checks a grammar is imported with the first

    chat.refuse_while_answering()
    chat.in_thread(lambda: named(argument, chat.directory), lambda found: _use_grammar(chat, found))


def _use_grammar(chat: ChatSurface, grammar: Grammar | None) -> None:
    own_params = {**chat.engine.own_params, "grammar": grammar}
    chat.attempt(lambda: chat.engine.configure(own_params=own_params))
    chat.recount()
    chat.tell(f"grammar is {set_values.shown(chat.engine.conversation.params.grammar)}")


def _think(chat: ChatSurface, argument: str) -> None:
    word = argument.lower()
    if word in ("show", "hide"):
        chat.answers.show_thoughts(word == "show")
        chat.tell("Thoughts are shown." if word == "show" else "Thoughts are folded.")
    elif word in THINK_LEVELS:
        chat.refuse_while_answering()
        change: dict[str, Any] = {"think": word}
        chat.engine.configure(options=dataclasses.replace(chat.engine.conversation.options, **change))
        chat.tell(f"Thinking: {word}")
    elif word:
        raise UsageError(f"/think {argument}?", hint=f"One of: {', '.join(THINK_LEVELS)}, show, hide.")
    else:
        chat.tell(f"Thinking: {chat.engine.conversation.options.think}")


def _info(chat: ChatSurface) -> str:
    conversation = chat.engine.conversation
    loaded = chat.engine.loaded
    if loaded is None:
        return f"{chat.engine.model} is not loaded. The next message loads it."
    kept = conversation.session_id or "not kept yet" if conversation.is_kept else "not kept"
    return info_page(loaded, kept)


def _template(chat: ChatSurface) -> str:
    loaded = chat.engine.loaded
    if loaded is None:
        return f"{chat.engine.model} is not loaded. The next message loads it."
    return loaded.info.chat_template or "The model has no chat template."


def _show(chat: ChatSurface, argument: str) -> None:
    name = argument.lower() or "info"
    if name not in PAGES:
        raise UsageError(f"/show {argument}?", hint=f"One of: {', '.join(PAGES)}.")
    if name == "system":
        _system(chat, "")
    elif name == "template":
        chat.page(name, _template(chat))
    else:
        chat.page(name, _info(chat) if name == "info" else parameters_page(*_configurations(chat)))


# --- turns ---------------------------------------------------------------------------------------------------------


def _regenerate(chat: ChatSurface, _argument: str) -> None:
    chat.answers.regenerate()


def _edit(chat: ChatSurface, _argument: str) -> None:
    chat.answers.edit_last()


def _undo(chat: ChatSurface, _argument: str) -> None:
    chat.answers.undo()


def _read(chat: ChatSurface, argument: str) -> None:
    path = file_to_read(argument, chat.directory)
    if path is None:
        chat.box.drop_files()
        chat.tell(NO_FILES)
        return
    chat.in_thread(lambda: read(path.name, path), lambda found: _attach(chat, found))


def _attach(chat: ChatSurface, found: Any) -> None:
    if isinstance(found, Refused):
        chat.fail(found.error)
        return
    chat.box.attach(found)
    chat.tell(f"{found.words} goes with your next message.")


def _copy(chat: ChatSurface, argument: str) -> None:
    if argument and not argument.isdecimal():
        raise UsageError(f"/copy {argument}?", hint="It takes the number of a code block, or nothing.")
    chat.copy(chat.engine.conversation.copy(int(argument) if argument else None))


# --- files ---------------------------------------------------------------------------------------------------------


def _save(chat: ChatSurface, argument: str) -> None:
    if not argument:
        raise UsageError("/save needs the name of a file.", hint="It is: /save PATH.json (or .md)")
    _write(chat, path_of(argument, chat.directory), "Saved as")


def _write(chat: ChatSurface, path: Path, done: str) -> None:
    save = chat.engine.conversation.save
    chat.in_thread(lambda: save(path), lambda written: chat.tell(f"{done} {written}"))


def _load(chat: ChatSurface, argument: str) -> None:
    if not argument:
        raise UsageError("/load needs the name of a file.", hint="It is: /load PATH.json")
    chat.refuse_while_answering()
    chat.leave_chat()
    chat.engine.conversation.load(path_of(argument, chat.directory))
    chat.show_conversation()


def _export(chat: ChatSurface, argument: str) -> None:
    conversation = chat.engine.conversation
    if not conversation.turns:
        raise UsageError("There is nothing to export.", hint="Ask something first.")
    if argument in ("", "md", "json"):
        argument = f"chat-{conversation.session_id or 'export'}.{argument or 'md'}"
    _write(chat, path_of(argument, chat.directory), "Exported as")


def _stats(chat: ChatSurface, _argument: str) -> None:
    chat.page("stats", stats_page(chat.totals))


FUNCTIONS: dict[str, Callable[[ChatSurface, str], None]] = {
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
