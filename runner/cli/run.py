"""`runner run MODEL [PROMPT]`: one prompt, one answer on stdout, nothing else there.

It puts the prompt together from its argument, files and a pipe. It keeps nothing: chats are `runner chat`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli import flag_groups, options, render
from runner.errors import EngineDied, UsageError

if TYPE_CHECKING:
    from runner.cli.interrupt import Interruptible
    from runner.config import ChatOptions, SamplingParams
    from runner.engine_process import EngineProcess
    from runner.events import ChatEvent, Loaded
    from runner.types import Message

_INTERRUPTED = 130


@flag_groups.with_groups
def run(
    *,
    model_argument: options.ModelArgument = None,
    prompt_words: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", help="The prompt; a pipe's text is added to it.")
    ] = None,
    model: options.Model = None,
    prompt: options.Prompt = None,
    files: options.Files = None,
    system: options.System = None,
    answer: flag_groups.Answer,
    think: options.Think = None,
    think_budget: options.ThinkBudget = None,
    hide_thinking: options.HideThinking = False,
    raw: options.Raw = False,
    overflow: options.Overflow = None,
    load: flag_groups.Load,
    offline: options.Offline = None,
    estimate_only: options.EstimateOnly = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Answer one prompt. The answer goes to stdout, everything else to stderr.

    Text from a pipe is added to the prompt: git diff | runner run demo "Explain"
    """
    from runner.engine_process import EngineProcess
    from runner.paths import user_paths
    from runner.settings import load_settings

    render.configure(quiet=quiet)
    paths = user_paths()
    settings = load_settings(paths)
    name, words = _model_and_prompt(model, model_argument, prompt_words or [], settings.model)
    load_options = settings.load_options(**load.given())
    if estimate_only:
        from runner.cli.fit_text import show_estimate

        return show_estimate(name, load_options, paths, offline=settings.is_offline(offline), as_json=as_json)
    if raw and system:
        raise UsageError("--raw sends the prompt alone, and --system adds to it.", hint="Leave one of them out.")
    if raw and (flag := "--think" if think is not None else "--think-budget" if think_budget is not None else ""):
        raise UsageError(
            f"--raw sends the prompt without a template, which alone knows of thoughts: {flag} would do nothing.",
            hint="Leave one of them out.",
        )
    chat_options = settings.chat_options(overflow=overflow, think=think, think_budget=think_budget, raw=raw or None)
    sampling = answer.given()
    settings.sampling_params({}, sampling)  # a wrong value is better said before anything is read or loaded
    text = _assemble(prompt, words, files or [])
    with EngineProcess(paths) as engine:
        engine.start()  # it imports what it needs while this process does
        from runner.cli.loading import Loader
        from runner.types import Message

        messages = [Message(role="user", content=text)]
        if system := settings.system if system is None else system:
            messages.insert(0, Message(role="system", content=system))
        loaded = Loader(engine, name, load_options, offline=settings.is_offline(offline), as_json=as_json).load()
        params = settings.sampling_params(loaded.sampling, sampling)
        one_shot = _OneShot(engine, loaded, messages, params, chat_options)
        code = (
            one_shot.as_json()
            if as_json
            else one_shot.as_text(has_thoughts=settings.show_thinking and not hide_thinking, verbose=verbose)
        )
    if code:
        raise typer.Exit(code)
    return None


def _model_and_prompt(flag: str | None, argument: str | None, words: Sequence[str], default: str) -> tuple[str, str]:
    """The model's name and the words of the prompt. With -m, all arguments are words of the prompt."""
    if flag is not None:
        return flag, " ".join([argument, *words] if argument else words)
    return options.model_name(argument, default=default), " ".join(words)


def _assemble(flag: str | None, words: str, files: Sequence[Path]) -> str:
    """The prompt: -p, the arguments, the files, and what is piped in, with empty lines between."""
    from runner.attachments import attached, read_text_file
    from runner.cli.piped import read_stdin

    parts = [flag or "", words]
    for file in files:
        text, notice = read_text_file(file)
        parts.append(attached(file, text) if len(files) > 1 else text)
        if notice:
            render.warn(notice)
    text, notice = read_stdin()
    parts.append(text)
    if notice:
        render.warn(notice)
    prompt = "\n\n".join(part.rstrip("\n") for part in parts if part.strip())
    if not prompt:
        raise UsageError("There is no prompt.", hint='Write one: runner run demo "Hello", or pipe text into it.')
    return prompt


class _OneShot:
    """One request to a loaded model, shown as text or as JSON. Both return the exit code."""

    def __init__(
        self,
        engine: EngineProcess,
        loaded: Loaded,
        messages: Sequence[Message],
        params: SamplingParams,
        chat_options: ChatOptions,
    ) -> None:
        self._engine = engine
        self._loaded = loaded
        self._messages = messages
        self._params = params
        self._chat_options = chat_options

    def _events(self, interrupted: Interruptible) -> Generator[ChatEvent]:
        """None come any more of an engine that a second Ctrl+C has ended."""
        try:
            yield from self._engine.chat(self._messages, self._params, self._chat_options)
        except EngineDied:
            if not interrupted.is_killed:
                raise

    def as_text(self, *, has_thoughts: bool, verbose: bool) -> int:
        from runner.cli.answer import AnswerView
        from runner.cli.interrupt import Interruptible
        from runner.cli.live import Live
        from runner.status_text import load_summary, speculation_summary, summary

        view = AnswerView(Live(is_wanted=False), has_thoughts=has_thoughts and render.is_terminal(sys.stderr))
        with Interruptible(self._engine, on_first=view.stopping) as interrupted:
            view.show_all(self._events(interrupted))
        if (finished := view.finished) is None:
            return _INTERRUPTED
        if finished.reason == "context":
            render.warn("The context is full: the answer is cut off.", "Use a larger context (-c).")
        elif finished.reason == "length":
            render.narrate("The answer is cut off at --max-tokens.")
        if finished.reason in ("context", "length") and self._params.grammar is not None:
            render.warn("It may not be whole by its grammar.")
        if verbose:
            render.say(summary(finished.timings, finished.n_ctx))
            done = finished.speculation
            render.say(f"speculation {speculation_summary(done) if done else self._loaded.speculation}")
            render.say(load_summary(self._loaded))
            render.say(f"{self._loaded.info.backend}: {self._loaded.reason} · seed {finished.seed}")
        return _INTERRUPTED if finished.reason == "cancelled" else 0

    def as_json(self) -> int:
        from contextlib import closing

        from runner.cli.answer import STOPPING
        from runner.cli.interrupt import Interruptible
        from runner.cli.loading import show_notice
        from runner.events import Finished, Notice, ReasoningDelta, TextDelta

        text: list[str] = []
        reasoning: list[str] = []
        finished: Finished | None = None
        stoppable = Interruptible(self._engine, on_first=lambda: render.narrate_now(STOPPING))
        with stoppable as interrupted, closing(self._events(interrupted)) as events:
            for event in events:
                if isinstance(event, TextDelta):
                    text.append(event.text)
                elif isinstance(event, ReasoningDelta):
                    reasoning.append(event.text)
                elif isinstance(event, Notice):
                    show_notice(event)
                elif isinstance(event, Finished):
                    finished = event
        if finished is None:
            return _INTERRUPTED
        render.emit_json("runner.run/1", self._payload("".join(text), "".join(reasoning), finished))
        return _INTERRUPTED if finished.reason == "cancelled" else 0

    def _payload(self, text: str, reasoning: str, finished: Any) -> dict[str, Any]:
        from runner.status_text import plain_speculation, plain_timings

        info = self._loaded.info
        return {
            "model": info.name,
            "backend": info.backend,
            "backend_reason": self._loaded.reason,
            "text": text,
            "reasoning": reasoning,
            "token_ids": list(finished.token_ids),
            "finish_reason": finished.reason,
            "seed": finished.seed,
            "n_ctx": finished.n_ctx,
            "timings": plain_timings(finished.timings),
            "speculation": plain_speculation(finished.speculation, self._loaded.speculation),
        }
