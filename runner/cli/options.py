"""The flags that commands share, spelled as the field spells them, and how they become configurations.

A flag that was not given is None, so that the environment, settings files and the model's own defaults come through:
flag > RUNNER_* > project file > user file > the model's own > built in. It knows no command.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from runner import config
from runner.cli import completing
from runner.config import BACKENDS, LONGEST_DRAFT, Grammar
from runner.errors import UsageError

_RATE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
KV_TYPES: tuple[str, ...] = get_args(config.KvType)
SPECULATIONS: tuple[str, ...] = get_args(config.Speculation)

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A name, owner/repo[:quant], a directory or a .gguf file.",
        show_default=False,
        autocompletion=completing.models,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        metavar="MODEL",
        help="The model, instead of as argument.",
        autocompletion=completing.models,
    ),
]
Prompt = Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt.")]
Files = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", metavar="PATH", readable=False, help="Add a text file to the prompt; repeatable."),
]
System = Annotated[str | None, typer.Option("-s", "--system", metavar="TEXT", help="The system prompt.")]

CtxSize = Annotated[int | None, typer.Option("-c", "--ctx-size", metavar="N", help="Tokens of context.")]
MaxTokens = Annotated[int | None, typer.Option("-n", "--max-tokens", metavar="N", help="Longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option("--temp", metavar="T", help="Temperature; 0 is greedy.")]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="N", help="Keep the N likeliest tokens; 0 is off.")]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="P", help="Keep the likeliest tokens up to P in all.")]
MinP = Annotated[
    float | None, typer.Option("--min-p", metavar="P", help="Drop tokens below P times the likeliest; 0 is off.")
]
RepeatPenalty = Annotated[
    float | None, typer.Option("--repeat-penalty", metavar="X", help="Divide logits of recent tokens; 1 is off.")
]
PresencePenalty = Annotated[
    float | None, typer.Option("--presence-penalty", metavar="X", help="Subtracted once for a recent token; 0 is off.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option("--frequency-penalty", metavar="X", help="Subtracted for each recent use; 0 is off.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="The same seed gives the same answer.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="End the answer at TEXT; repeatable.")]
JsonSchema = Annotated[
    str | None,
    typer.Option(
        "-j",
        "--json-schema",
        metavar="SCHEMA",
        help="The answer is JSON of this schema: a file, {...}, or json for any.",
    ),
]
GrammarFile = Annotated[
    Path | None, typer.Option("--grammar", metavar="PATH", help="The answer is a text of this GBNF or Lark grammar.")
]

Think = Annotated[
    str | None,
    typer.Option("--think", metavar="[=LEVEL]", help="Thinking: on, off, low, medium, high; alone it means on."),
]
ThinkBudget = Annotated[int | None, typer.Option("--think-budget", metavar="N", help="Longest thought, in tokens.")]
HideThinking = Annotated[bool, typer.Option("--hide-thinking", help="Do not show thoughts.")]
Overflow = Annotated[
    str | None,
    typer.Option(
        "--overflow",
        metavar="stop|drop",
        help="When the context is full: stop with an error, or drop the oldest turns.",
        autocompletion=lambda: ["stop", "drop"],
    ),
]
Raw = Annotated[bool, typer.Option("--raw", help="No chat template: the prompt goes to the model as it stands.")]

Backend = Annotated[
    str | None,
    typer.Option(
        "--backend", metavar="|".join(BACKENDS), help="What runs the model.", autocompletion=lambda: list(BACKENDS)
    ),
]
GpuLayers = Annotated[
    str | None,
    typer.Option(
        "-ngl",
        "--n-gpu-layers",
        metavar="auto|all|N",
        help="Layers on the GPU; 0 is the CPU.",
        autocompletion=lambda: ["auto", "all"],
    ),
]
KvType = Annotated[
    str | None,
    typer.Option(
        "--kv-type", metavar="|".join(KV_TYPES), help="Type of the KV cache.", autocompletion=lambda: list(KV_TYPES)
    ),
]
Spec = Annotated[
    str | None,
    typer.Option(
        "--spec",
        metavar="|".join(SPECULATIONS),
        help="What drafts tokens for the model to verify; the text stays the same.",
        autocompletion=lambda: list(SPECULATIONS),
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="MODEL",
        help="The model that drafts: a small one of the same family, or a lower quantization of the model itself; or "
        "the EAGLE-3 head, by its directory or name.",
        autocompletion=completing.models,
    ),
]
DraftMax = Annotated[
    int | None, typer.Option("--draft-max", metavar="N", help=f"Longest draft, in tokens: 1 to {LONGEST_DRAFT}.")
]
DraftFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--draft-file", metavar="PATH", help="A text that drafts may quote, such as a file to be edited; repeatable."
    ),
]
Threads = Annotated[int | None, typer.Option("-t", "--threads", metavar="N", help="CPU threads.")]
Force = Annotated[bool, typer.Option("--force", help="Load even what is not expected to fit.")]
EstimateOnly = Annotated[
    bool, typer.Option("--estimate-only", help="Say what the model would take here, and stop: nothing is fetched.")
]
Offline = Annotated[bool | None, typer.Option("--offline", help="Never use the network.", show_default=False)]

LimitRate = Annotated[
    str | None,
    typer.Option("--limit-rate", metavar="RATE", help="Fetch at most so many bytes a second: 500k, 10M, 1G."),
]
Parallel = Annotated[int, typer.Option("-j", "--parallel", min=1, max=64, metavar="N", help="Files fetched at once.")]

Continue = Annotated[bool, typer.Option("--continue", help="Go on with the chat used last.")]
Resume = Annotated[
    str | None,
    typer.Option("--resume", metavar="ID", help="Go on with that chat.", autocompletion=completing.chats),
]
NoLog = Annotated[bool, typer.Option("--no-log", help="Keep nothing of this chat.")]

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show timings.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No narration; warnings and errors still appear.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def model_name(*given: str | None, default: str) -> str:
    """The name of the model that the first of the places that were `given` any says; an empty one is no model's."""
    return next((name for name in given if name is not None), default)


def gpu_layers(text: str | None) -> int | Literal["auto", "all"] | None:
    """The value of -ngl. Raises UsageError."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if text == "all":
        return "all"
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"-ngl is {text!r}.", hint="It must be auto, all, or a number of layers.") from None


def rate_bytes_s(text: str | None) -> int | None:
    """The value of --limit-rate in bytes a second: a number, with k, M or G for powers of 1000. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*([kKmMgG]?)[bB]?(?:/s)?", text.strip())
    rate = round(float(match[1]) * _RATE_UNITS[match[2].lower()]) if match else 0
    if rate < 1:
        raise UsageError(f"--limit-rate is {text!r}.", hint="It must be bytes a second, such as 500k, 10M or 1.5G.")
    return rate


def grammar(json_schema: str | None, file: Path | None) -> Grammar | None:
    """What the answer has to be. It is compiled here once, so that a mistake is told before a model is loaded.

    Raises UsageError.
    """
    if json_schema is None and file is None:
        return None
    if json_schema is not None and file is not None:
        raise UsageError("--json-schema and --grammar are both given.", hint="Use one of them.")
    from runner.grammar_text import grammar_file, json_schema_of

    return grammar_file(file) if file is not None else json_schema_of(json_schema or "")
