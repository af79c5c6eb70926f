"""The chat's slash commands: one function each, in the table COMMANDS.

They act on a Repl (repl.py) and print what was asked for on stderr. A function returns False to leave the chat. They
know nothing of keys or of how a message was typed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.cli import clipboard, render, set_values
from runner.cli.attachments import attached, read_text_file
from runner.cli.status_text import rate, summary
from runner.config import ChatOptions, LoadOptions, SamplingParams, nearest_hint
from runner.errors import UsageError

if TYPE_CHECKING:
    from runner.cli.repl import Repl

_THINK = ("on", "off", "low", "medium", "high", "auto")


@dataclass(frozen=True)
class Command:
    """function: takes the chat and the text after the name. argument: what that text is, "" for none."""

    function: Callable[[Repl, str], bool | None]
    help: str
    argument: str = ""
    aliases: tuple[str, ...] = ()


def run_command(repl: Repl, line: str) -> bool:
    """Do what a line such as "/set top_k 20" says. False: leave. Raises UsageError for an unknown command."""
    name, _, argument = line[1:].partition(" ")
    first_line = name.split("\n", 1)
    if len(first_line) == 2:  # "/system\nlong text"
        name, argument = first_line[0], first_line[1] + (" " + argument if argument else "")
    command = _BY_NAME.get(name.lower())
    if command is None:
        near = nearest_hint("/" + name, ["/" + known for known in COMMANDS])
        raise UsageError(f"There is no command /{name}.", hint=f"{near} Begin with // to send a slash.")
    if argument.strip() and not command.argument:
        raise UsageError(f"/{name} takes nothing after it.", hint=f"It is: /{name}")
    return command.function(repl, argument.strip()) is not False


# --- the chat ------------------------------------------------------------------------------------------------------


def _help(_repl: Repl, _argument: str) -> None:
    rows = [(f"/{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    width = max(len(left) for left, _ in rows)
    lines = [f"{left:<{width}}  {text}" for left, text in rows]
    lines += [
        "",
        'Ctrl+J begins a new line; so does Enter between """ and """.',
        "Ctrl+C stops an answer; pressed again, it ends the engine. Ctrl+D leaves.",
    ]
    render.say("\n".join(lines))


def _exit(_repl: Repl, _argument: str) -> bool:
    return False


def _clear(repl: Repl, _argument: str) -> None:
    repl.conversation.clear()
    repl.attachments.clear()
    render.narrate("A new chat. The one before is kept." if repl.conversation.is_kept else "A new chat.")


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


def _think(repl: Repl, argument: str) -> None:
    word = argument.lower()
    if word in ("show", "hide"):
        repl.has_thoughts = word == "show"
        render.narrate("Thoughts are shown." if repl.has_thoughts else "Thoughts are hidden.")
    elif word in _THINK:
        change: dict[str, Any] = {"think": word}
        repl.conversation.configure(options=dataclasses.replace(repl.conversation.options, **change))
        render.narrate(f"Thinking: {word}")
    elif word:
        raise UsageError(f"/think {argument}?", hint=f"One of: {', '.join(_THINK)}, show, hide.")
    else:
        render.say(f"Thinking: {repl.conversation.options.think}; {'shown' if repl.has_thoughts else 'hidden'}")


def _parameters(repl: Repl) -> str:
    lines = []
    for values in _configurations(repl):
        fields = [f.name for f in dataclasses.fields(values) if f.name in set_values.names()]
        lines += [f"{name:<18} {set_values.shown(getattr(values, name))}" for name in fields]
    return "\n".join(lines)


def _info(repl: Repl) -> str:
    loaded = repl.loader.ensure()
    info, memory = loaded.info, loaded.memory
    rows = [
        ("model", info.name),
        ("architecture", info.architecture),
        ("parameters", render.short_count(info.num_parameters)),
        ("quantization", info.quantization),
        ("size", render.decimal_size(info.size_bytes)),
        ("backend", f"{info.backend}: {loaded.reason}"),
        ("device", info.device),
        ("layers on GPU", f"{info.n_gpu_layers} of {info.num_layers}"),
        ("context", f"{info.n_ctx} tokens, trained on {info.context_length}"),
        (
            "memory",
            f"{render.binary_size(memory.total_bytes)}: weights {render.binary_size(memory.weights_bytes)}, "
            f"KV {render.binary_size(memory.kv_cache_bytes)}, workspace {render.binary_size(memory.workspace_bytes)}",
        ),
        ("chat", repl.conversation.session_id or "not kept yet" if repl.conversation.is_kept else "not kept"),
    ]
    return "\n".join(f"{name:<14} {value}" for name, value in rows)


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
    if not argument:
        raise UsageError("/read needs the name of a file.", hint="It is: /read PATH")
    path = Path(argument.strip("'\""))
    text, notice = read_text_file(path)
    if notice:
        render.warn(notice)
    repl.attachments.append(attached(path, text))
    n_lines = len(text.splitlines())
    render.narrate(f"{path.name} ({n_lines} {'line' if n_lines == 1 else 'lines'}) goes with your next message.")


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
    render.narrate(f"Saved as {repl.conversation.save(Path(argument))}")


def _load(repl: Repl, argument: str) -> None:
    if not argument:
        raise UsageError("/load needs the name of a file.", hint="It is: /load PATH.json")
    repl.conversation.load(Path(argument))
    repl.attachments.clear()
    render.say(repl.recap())


def _export(repl: Repl, argument: str) -> None:
    if not repl.conversation.turns:
        raise UsageError("There is nothing to export.", hint="Ask something first.")
    if argument in ("", "md", "json"):
        name = f"chat-{repl.conversation.session_id or 'export'}.{argument or 'md'}"
        argument = str(repl.directory / name)
    render.narrate(f"Exported as {repl.conversation.save(Path(argument))}")


def _stats(repl: Repl, _argument: str) -> None:
    totals = repl.totals
    if totals.last is None:
        render.say("There was no answer yet.")
        return
    lines = [f"last answer  {summary(totals.last.timings, totals.last.n_ctx)}", f"seed         {totals.last.seed}"]
    n_timed = totals.completion_tokens - totals.n_answers
    speed = f" · {rate(n_timed / totals.decode_s)}" if totals.decode_s > 0 and n_timed > 0 else ""
    answers = f"{totals.n_answers} answer{'' if totals.n_answers == 1 else 's'}"
    lines.append(f"this chat    {answers} · {totals.completion_tokens} tokens{speed}")
    render.say("\n".join(lines))


COMMANDS: dict[str, Command] = {
    "help": Command(_help, "List the commands.", aliases=("?", "h")),
    "exit": Command(_exit, "Leave.", aliases=("quit", "bye", "q")),
    "clear": Command(_clear, "Start a new chat with the same model and system prompt."),
    "new": Command(_clear, "The same as /clear."),
    "model": Command(_model, "Go on with another model.", "[NAME]"),
    "system": Command(_system, "Show or set the system prompt; none removes it.", "[TEXT]"),
    "set": Command(_set, "Show or change a parameter.", "[NAME VALUE]"),
    "show": Command(_show, "Show info, parameters, system or template.", "[WHAT]"),
    "think": Command(_think, "Thinking: on, off, low, medium, high; show, hide.", "[LEVEL]"),
    "regen": Command(_regenerate, "Answer the last message again."),
    "edit": Command(_edit, "Change the last message and send it again."),
    "undo": Command(_undo, "Take back the last message and its answer."),
    "read": Command(_read, "Add a text file to the next message.", "PATH"),
    "copy": Command(_copy, "Copy the last answer, or its n-th code block.", "[N]"),
    "save": Command(_save, "Save the chat as .json or .md.", "PATH"),
    "load": Command(_load, "Go on with a chat saved as .json.", "PATH"),
    "export": Command(_export, "Write the chat to a file of this directory, or to PATH.", "[md|json|PATH]"),
    "stats": Command(_stats, "Show speed and tokens."),
}
_BY_NAME = {alias: command for name, command in COMMANDS.items() for alias in (name, *command.aliases)}
