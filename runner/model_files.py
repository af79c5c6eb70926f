"""Which files of a repository or directory make up a model, decided from their names alone.

Pure functions of names: they serve the hub's list of files, the cache and local directories alike. What is in a file is
for prepare.py and the readers in quant/; this file opens none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from runner.errors import BadModelFile, UnsupportedModel, UsageError
from runner.quant.packed_files import HEAD_NAME, MANIFEST_NAME, WEIGHTS_NAME, is_packed
from runner.registry import SAFETENSORS, ModelSpec, quant_of

CONFIG, SAMPLING = "config.json", "generation_config.json"
# Read by tokenizers and templates when they are there; only config.json and a tokenizer must be.
SIDE_FILES = (
    CONFIG,
    SAMPLING,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
INDEX = "model.safetensors.index.json"
TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
WEIGHT_SUFFIXES = (".gguf", ".safetensors")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

# Taken in this order when a repository has several quantizations and none was asked for.
PREFERRED_QUANTS = ("Q4_K_M", "UD-Q4_K_M", "MXFP4", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16", "F32")

_LACKED = "The repository itself lacks that: fetching again brings nothing. Choose another one, or another --revision."
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.safetensors)", re.I)
_WORD = re.compile(r"[-._/]")
# GGUF files beside a model that are none themselves: vision projectors and calibration data.
_NO_MODELS = frozenset({"mmproj", "imatrix"})


@dataclass(frozen=True)
class FileGroup:
    """One set of weights: one file, or all parts of a split one, in order. label: the name without part numbers."""

    label: str
    names: tuple[str, ...]

    @property
    def quant(self) -> str:
        return quant_of(self.label)


@dataclass(frozen=True)
class Choice:
    """The files of one model: `weights` in order, and the side files that are there."""

    format: Literal["gguf", "safetensors", "packed"]
    weights: tuple[str, ...]
    side: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return self.weights + self.side

    @property
    def quant(self) -> str:
        """The quantization that the first file is named after, or ""."""
        return quant_of(self.weights[0])


def weight_bytes(files: Iterable[tuple[str, int]]) -> int:
    """How much of those files, names and bytes, is weights: what the size of a model means everywhere."""
    return sum(size for name, size in files if name.lower().endswith(WEIGHT_SUFFIXES))


def _part(name: str) -> re.Match[str] | None:
    """The name of a part of a split file; None for any other, and for a number that no part can have."""
    match = _PART.fullmatch(name)
    return match if match and 1 <= int(match["number"]) <= int(match["count"]) else None


def _groups(names: Iterable[str], suffix: str) -> tuple[list[FileGroup], dict[str, str]]:
    """Complete sets of that suffix; and of the sets with a part missing the labels, each with how that is told."""
    whole: list[FileGroup] = []
    parts: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(names):
        if match := _part(name):
            if match["suffix"].lower() == suffix:
                label = match["stem"] + match["suffix"]
                parts.setdefault((label, int(match["count"])), {})[int(match["number"])] = name
        elif name.lower().endswith(suffix):
            whole.append(FileGroup(name, (name,)))
    incomplete = dict[str, str]()
    for (label, count), numbered in parts.items():
        if sorted(numbered) == list(range(1, count + 1)):
            whole.append(FileGroup(label, tuple(numbered[number] for number in sorted(numbered))))
        else:
            incomplete[label] = f"{label} ({len(numbered)} of {count} parts)"
    return whole, incomplete


def needs_index(names: Collection[str]) -> bool:
    """Whether the index has to say which safetensors are the model: no shards are numbered in the usual way."""
    if INDEX not in names:
        return False
    parts = (_part(name) for name in names)
    return not any(match and match["stem"] + match["suffix"] == WEIGHTS_NAME for match in parts)


def intended_groups(names: Iterable[str], indexed: Collection[str] = ()) -> tuple[FileGroup, ...]:
    """The sets of weights that `names` belong to, whole or not; a split one has the names of all its parts.

    Safetensors count at the top alone; projectors and the like are left out. indexed: what the index names, where
    `needs_index`; it counts wherever it is.
    """
    found, rest = dict[str, FileGroup](), set(names)
    if not rest.isdisjoint(indexed):
        found[INDEX] = FileGroup(WEIGHTS_NAME, tuple(sorted(indexed)))
        rest.difference_update(indexed)
    for name in sorted(rest):
        suffix = PurePosixPath(name).suffix.lower()
        if suffix not in WEIGHT_SUFFIXES or (suffix == ".safetensors" and "/" in name):
            continue
        label, parts = name, [name]
        if match := _part(name):
            label = match["stem"] + match["suffix"]
            count = match["count"]
            parts = [f"{match['stem']}-{n:05d}-of-{count}{match['suffix']}" for n in range(1, int(count) + 1)]
        if not _NO_MODELS & set(_WORD.split(label.lower())):
            found.setdefault(f"{label} in {len(parts)}", FileGroup(label, tuple(parts)))
    return tuple(found.values())


def part_number(name: str) -> int | None:
    """Which part of a split file that is, from 1; None for a file that is not split."""
    match = _part(name)
    return int(match["number"]) if match else None


def gguf_groups(names: Iterable[str]) -> tuple[FileGroup, ...]:
    """The complete GGUF models among `names`, split ones as one group. Projectors and the like are left out."""
    groups, _ = _groups(names, ".gguf")
    return tuple(group for group in groups if not _NO_MODELS & set(_WORD.split(group.label.lower())))


def safetensors_weights(
    names: Collection[str], indexed: Collection[str] = (), *, are_all: bool = False
) -> tuple[str, ...]:
    """The weight files at the top of `names`: model.safetensors, or the shards of it, or a lone other file; or none.

    indexed: what the index names, where `needs_index`: that is the model, wherever it is. are_all: the repository has
    no others. Raises BadModelFile when a shard is missing and UsageError when it cannot be told which set is the model.
    """
    if indexed and set(indexed) <= set(names):
        return tuple(sorted(indexed))
    top = [name for name in names if "/" not in name]
    groups, incomplete = _groups(top, ".safetensors")
    own = [group for group in groups if group.label == WEIGHTS_NAME]
    if INDEX in top:  # shards win over a single file: the index says that they are the model
        own.sort(key=lambda group: -len(group.names))
    # consolidated.safetensors is Mistral's own layout of the same weights.
    others = [group for group in groups if not group.label.startswith("consolidated")]
    is_torn = not own and WEIGHTS_NAME in incomplete  # other sets are no substitute for the model's own
    if not own and not set(indexed).isdisjoint(names):
        lacking = ", ".join(sorted(set(indexed) - set(names)))
        raise BadModelFile(
            f"Parts of the weights are missing: {lacking}.", hint=_LACKED if are_all else "Fetch them again."
        )
    if (found := own or others) and not is_torn:
        if not own and len(found) > 1:
            raise UsageError(
                f"There are several sets of weights: {', '.join(group.label for group in found)}.",
                hint="Choose another repository." if are_all else "Keep one of them in the directory.",
            )
        return found[0].names
    if incomplete:
        raise BadModelFile(
            f"Parts of the weights are missing: {', '.join(incomplete.values())}.",
            hint=_LACKED if are_all else "Fetch them again.",
        )
    return ()


def check_index(weights: Collection[str], indexed: Collection[str], names: Collection[str], where: str) -> None:
    """Raise BadModelFile when the index of a repository names shards that are not among the `names` it has.

    An index that names none of the chosen `weights` is of another set, or old: it is passed over.
    """
    lacking = sorted(set(indexed) - set(names))
    if lacking and not set(indexed).isdisjoint(weights):
        others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise BadModelFile(f"{where} has no {lacking[0]}{others}, and its {INDEX} says that it has.", hint=_LACKED)


def choose(
    spec: ModelSpec, names: Sequence[str], where: str, indexed: Collection[str] = (), *, are_all: bool = False
) -> Choice:
    """The files of `spec` among `names`, POSIX paths relative to `where` (a repository or directory, for messages).

    indexed: what the index names, where `needs_index`. are_all: `where` is a repository that has no others, so that
    fetching again would not bring what is missing. Raises UsageError when the quantization is not there or has to be
    named, BadModelFile when files are missing, and UnsupportedModel when there are only pickled weights or none.
    """
    if spec.asked != SAFETENSORS and (groups := gguf_groups(names)):
        group = _choose_gguf(spec, groups, names, where, are_all)
        side = tuple(name for name in SIDE_FILES if _beside(group.names[0], name) in names)
        return Choice("gguf", group.names, tuple(_beside(group.names[0], name) for name in side))
    if not spec.chosen_quant and (weights := safetensors_weights(names, indexed, are_all=are_all)):
        missing = missing_side_files(names)
        if missing:
            hint = _LACKED if are_all else "Fetch the whole repository."
            raise BadModelFile(f"{where} has weights, but no {missing}.", hint=hint)
        if is_packed(names):
            side = tuple(name for name in (MANIFEST_NAME, HEAD_NAME, *SIDE_FILES) if name in names)
            return Choice("packed", (WEIGHTS_NAME,), side)
        side = tuple(name for name in (*SIDE_FILES, INDEX) if name in names)
        return Choice("safetensors", weights, side)
    raise _nothing(spec, names, indexed, where, are_all)


def _beside(weights: str, name: str) -> str:
    """`name` in the folder of `weights`."""
    return str(PurePosixPath(weights).parent / name)


def missing_side_files(names: Iterable[str]) -> str:
    """What safetensors weights lack to be run, in words, or ""."""
    return " and no ".join(_lacking_side_files(set(names)))


def _lacking_side_files(there: Collection[str]) -> list[str]:
    lacking = [] if CONFIG in there else [CONFIG]
    if not any(set(files) <= set(there) for files in TOKENIZERS):
        begun = next((files for files in TOKENIZERS if set(files) & set(there)), TOKENIZERS[0])
        lacking += [name for name in begun if name not in there]
    return lacking


def lacking_files(weights: Iterable[str], there: Collection[str]) -> tuple[str, ...]:
    """What is not `there` of those weights, nor of the files beside them without which they cannot be run."""
    wanted = tuple(weights)
    lacking = [name for name in wanted if name not in there]
    if not all(name.lower().endswith(".gguf") for name in wanted):
        lacking += _lacking_side_files(there)
    return tuple(lacking)


def _choose_gguf(
    spec: ModelSpec, groups: Sequence[FileGroup], names: Sequence[str], where: str, are_all: bool
) -> FileGroup:
    wanted = spec.chosen_quant
    if spec.file:
        label = spec.file.replace("{quant}", wanted).lower()
        fitting = [group for group in groups if PurePosixPath(group.label).name.lower() == label]
    elif wanted:
        fitting = [group for group in groups if group.quant == wanted.upper()]
    else:
        fitting = _preferred(groups)
    if len({PurePosixPath(group.label).name.lower() for group in fitting}) == 1:
        # The same file at the top and in a folder, or whole and in parts: the plainest.
        return min(fitting, key=lambda group: (group.label.count("/"), len(group.names), group.label))
    if wanted and not fitting:
        _, incomplete = _groups(names, ".gguf")
        if torn := [text for label, text in incomplete.items() if quant_of(label) == wanted.upper()]:
            raise _torn(torn, where, are_all)
        listed = ", ".join(group.quant or group.label for group in groups)
        raise UsageError(f"{where} has no {wanted} of this model.", hint=f"It has: {listed}.")
    listed = ", ".join(group.label for group in fitting or groups)
    raise UsageError(
        f"{where} has several models: {listed}.",
        hint="Ask for one as NAME:QUANT; or name it in your models.toml, with gguf and file.",
    )


def _preferred(groups: Sequence[FileGroup]) -> list[FileGroup]:
    """What to take when nothing was asked for: the only one, or the best liked quantization of the only model."""
    if len(groups) == 1:
        return list(groups)
    stems = {group.label[: len(group.label) - len(".gguf") - len(group.quant)] for group in groups if group.quant}
    if len(stems) != 1:
        return []
    by_quant = {group.quant: group for group in groups}
    return next(([by_quant[quant]] for quant in PREFERRED_QUANTS if quant in by_quant), [])


def _nothing(spec: ModelSpec, names: Sequence[str], indexed: Collection[str], where: str, are_all: bool) -> Exception:
    """The error for a place without files of the model."""
    _, incomplete = _groups(names, ".gguf")
    if incomplete:
        return _torn(incomplete.values(), where, are_all)
    if spec.chosen_quant and safetensors_weights(names, indexed):
        return UsageError(
            f"{where} has no {spec.chosen_quant}: it has the original weights.", hint="Ask for :safetensors."
        )
    if any(name.lower().endswith(PICKLES) for name in names):
        return UnsupportedModel(
            f"{where} has pickled weights only, and loading a pickle can run any program in it.",
            hint="Look for a safetensors or GGUF version of the model.",
        )
    return UnsupportedModel(f"{where} has no GGUF and no safetensors weights.", hint="Is it a language model?")


def _torn(incomplete: Iterable[str], where: str, are_all: bool) -> BadModelFile:
    return BadModelFile(
        f"Parts of the model are missing in {where}: {', '.join(incomplete)}.",
        hint=_LACKED if are_all else "Fetch it again.",
    )
