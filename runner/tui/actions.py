"""The one table of what the user can do: bindings, the key bar, the palette, help and the documentation follow it.

A row's `name` is a method action_<name> of the app ("app"), of the screen of that mode, or of the answers that have the
focus ("transcript"). It knows no widget.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from textual.binding import Binding

from runner.tui.key_names import key_names

Where = Literal["app", "chat", "transcript", "models", "bench", "doctor"]


@dataclass(frozen=True)
class Action:
    """keys: Textual's names, the first one is shown; "" is reached by the palette alone.

    label: for the key bar. is_shown: whether the key bar has it. plain: the key that does the same where no text is
    being typed.
    """

    where: Where
    name: str
    keys: str
    label: str
    help: str
    is_shown: bool = True
    plain: str = ""
    in_dialogs: bool = False

    def binding(self) -> Binding:
        return Binding(
            self.keys, self.name, self.label, show=self.is_shown, tooltip=self.help, priority=self.in_dialogs
        )


ACTIONS: tuple[Action, ...] = (
    Action("app", "help", "f1", "Help", "What can be done here, and how."),
    Action("app", "mode('models')", "f2", "Models", "Browse, fetch, quantize and delete models."),
    Action("app", "mode('bench')", "f3", "Bench", "Measure how fast a model runs here."),
    Action("app", "mode('doctor')", "f4", "Doctor", "Check this machine and say what to mend."),
    Action("app", "mode('chat')", "f5", "Chat", "Go to the chat.", is_shown=False),
    Action("app", "jump", "ctrl+o", "Jump", "Show a letter on everything that can be reached; type it to go there."),
    Action("app", "command_palette", "ctrl+p", "Palette", "Find any action by its name."),
    Action("app", "next_theme", "f9", "Theme", "The next theme: dark, light, the terminal's own.", is_shown=False),
    Action("app", "suspend_process", "", "Suspend", "Go back to the shell until fg; what runs goes on."),
    Action(
        "app",
        "quit",
        "ctrl+q",
        "Quit",
        "Leave. Chats are kept; what was begun waits.",
        is_shown=False,
        in_dialogs=True,
    ),
    Action("chat", "new_chat", "ctrl+n", "New", "Begin a new chat; the one before is kept.", plain="n"),
    Action("chat", "stop", "escape", "Stop", "Stop the answer or the load; else go between prompt and answers."),
    Action("chat", "regenerate", "ctrl+r", "Again", "Answer the last message again.", plain="r"),
    Action("chat", "thoughts", "ctrl+t", "Thoughts", "Fold or show what the model thought.", plain="t"),
    Action("chat", "settings", "f6", "Settings", "System prompt, thinking, sampling, speculation.", plain="s"),
    Action("chat", "left_rail", "f7", "Chats", "Show or fold chats, models and downloads.", is_shown=False),
    Action("chat", "right_rail", "f8", "Live", "Show or fold the live numbers.", is_shown=False),
    Action("chat", "edit_last", "", "Edit", "Change the last message and send it again.", plain="e"),
    Action("chat", "undo", "", "Undo", "Take back the last message and its answer.", plain="u"),
    Action("chat", "copy_answer", "", "Copy", "Copy the last answer.", plain="y"),
    Action("chat", "copy_code", "", "Copy code", "Copy the last code block of the last answer.", plain="c"),
    Action("chat", "search_chats", "", "Search", "Search the kept chats.", plain="slash"),
    Action("chat", "editor", "ctrl+g", "Editor", "Write the message in the editor that $EDITOR names.", is_shown=False),
    Action("chat", "pager", "", "Pager", "Read this chat in the pager that $PAGER names, and search in it.", plain="v"),
    Action("chat", "rename_chat", "", "Rename", "Give this chat another title."),
    Action("chat", "delete_chat", "", "Delete", "Delete this chat for good."),
    Action("chat", "export_chat", "", "Export", "Write this chat to a Markdown file here."),
    Action("chat", "stats", "", "Stats", "What the answers of this chat took."),
    Action("chat", "model_page", "", "Model", "What is loaded, and where and why it runs there."),
    Action("chat", "backend_reason", "", "Why this backend", "Show or fold why this backend runs the model."),
    Action("chat", "speculation", "", "Speculation", "Show or fold how drafted tokens fared."),
    Action("chat", "tint", "", "Tint", "Tint the tokens that a drafter had guessed, or not."),
    Action("chat", "other_programs", "", "Who holds memory", "Show or fold what other programs hold."),
    Action("transcript", "copy_answer", "y", "Copy", "Copy the chosen turn, or the last answer."),
    Action("transcript", "copy_code", "c", "Copy code", "Copy the chosen code block, or the last one of the answer."),
    Action("transcript", "fold", "t,enter", "Thought", "Show or fold the thought of the answer."),
    Action("transcript", "edit", "e", "Edit", "Change the last message and send it again.", is_shown=False),
    Action("transcript", "regenerate", "r", "Again", "Answer the last message again.", is_shown=False),
    Action("transcript", "turn(-1)", "left_square_bracket", "Turn", "Choose the turn before."),
    Action("transcript", "turn(1)", "right_square_bracket", "Next", "Choose the next turn.", is_shown=False),
    Action("transcript", "code(-1)", "left_curly_bracket", "Code", "Choose the code block before.", is_shown=False),
    Action("transcript", "code(1)", "right_curly_bracket", "Code", "Choose the next code block.", is_shown=False),
    Action("transcript", "scroll_up", "k,up", "Up", "One row up.", is_shown=False),
    Action("transcript", "scroll_down", "j,down", "Down", "One row down.", is_shown=False),
    Action("transcript", "page_up", "pageup,b", "Page up", "One page up.", is_shown=False),
    Action("transcript", "page_down", "pagedown,space", "Page down", "One page down.", is_shown=False),
    Action("transcript", "scroll_home", "g,home", "Begin", "Go to the beginning of the chat.", is_shown=False),
    Action("transcript", "scroll_end", "G,end", "End", "Go to the end, and follow it.", is_shown=False),
    Action("models", "filter", "slash", "Filter", "Type words: models that have all of them stay."),
    Action("models", "download", "d", "Download", "Fetch this model, or go on with it; asks which quantization."),
    Action("models", "quantize", "q", "Quantize", "Make this model smaller."),
    Action("models", "bench", "b", "Bench", "Measure how fast this model runs here."),
    Action("models", "delete", "x", "Delete", "Delete this model's files; says what goes and what that frees."),
    Action("models", "compare", "c", "Compare", "Mark a model; on another model: compare the two."),
    Action("models", "fits_only", "f", "Fits", "Show only what fits this machine, or everything."),
    Action("models", "sort", "s", "Sort", "Sort by the next column."),
    Action("models", "search_hub", "h", "Hub", "Look for the words of the filter on the model hub."),
    Action("models", "details", "i", "Details", "Show or hide what the model would take here."),
    Action("models", "less_context", "left", "Less context", "Estimate with a smaller context.", is_shown=False),
    Action("models", "more_context", "right", "More context", "Estimate with a larger context.", is_shown=False),
    Action("models", "jobs", "g", "Jobs", "Go to the downloads; p pauses, x gives up, r tries again.", is_shown=False),
    Action("models", "reload", "f11", "Reload", "Read again what is on this machine.", is_shown=False),
    Action("models", "back", "escape", "Back", "Clear the filter, or go back to the chat.", is_shown=False),
    Action("bench", "start", "s", "Start", "Measure the model that is chosen: prefill, decode, first text."),
    Action("bench", "stop", "x", "Stop", "Stop measuring; what was measured until then is shown."),
    Action("bench", "again", "r", "Again", "Measure the run that is shown again, as it was, and compare the two."),
    Action("bench", "compare", "c", "Compare", "Mark a run; on another run: compare the two."),
    Action("bench", "export", "e", "Export", "Write the run that is shown to a file: .md, .csv, .json or .svg."),
    Action("bench", "back", "escape", "Stop/back", "Stop measuring, or go back to the chat."),
    Action("doctor", "again", "r", "Again", "Run the checks again."),
    Action("doctor", "copy", "y", "Copy", "Copy the report: it names no chats and no passwords."),
    Action("doctor", "back", "escape", "Back", "Go back to the chat.", is_shown=False),
)  # fmt: skip


def actions_of(where: Where) -> tuple[Action, ...]:
    return tuple(action for action in ACTIONS if action.where == where)


def bindings_of(where: Where) -> list[Binding]:
    """The bindings of the app or of one mode's screen."""
    return [action.binding() for action in actions_of(where) if action.keys]


def reference() -> str:
    """The table as Markdown, for the documentation."""
    headings = {
        "app": "Everywhere",
        "chat": "Chat",
        "transcript": "Answers, when they have the focus",
        "models": "Models",
        "bench": "Bench",
        "doctor": "Doctor",
    }
    lines = []
    for where in get_args(Where):
        lines += [f"### {headings[where]}", "", "| key | action | what it does |", "|---|---|---|"]
        for action in actions_of(where):
            keys = key_names(",".join(key for key in (action.keys, action.plain) if key), " or ")
            lines.append(f"| {keys or 'palette'} | {action.label} | {action.help} |".replace("`", ""))
        lines.append("")
    return "\n".join(lines)
