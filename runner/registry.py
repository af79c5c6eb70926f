"""Which model a text means: models.toml, the user's own file over it, repositories, and files on this machine.

It turns "qwen3-8b:Q8_0", "owner/repo:Q4_K_M", a directory or a .gguf file into a frozen ModelSpec. It knows nothing of
what is downloaded (hub) or how files are chosen and checked (prepare.py), and reads no model file.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runner.errors import ConfigError, UnknownModel, UsageError, nearest, nearest_hint
from runner.paths import Paths, builtin, user_paths
from runner.quant.half_made import finished, remedies
from runner.quant.packed_files import PARTIAL_SUFFIX

Origin = Literal["registry", "made", "hub", "path", "fake"]

# What may follow ":" to ask for the original weights instead of a GGUF quantization.
SAFETENSORS = "safetensors"
FAKE = "fake"
SCRIPT_SUFFIX = ".script.json"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
# The hub's own rule for repository names: two parts of word characters, "-" and ".", no ".." or "--" in them.
_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?")
_DRIVE = re.compile(r"[A-Za-z]:([\\/]|$)")
_QUANT = re.compile(
    r"(?i)(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|B?F16|F32|MXFP4(?:_MOE)?))(?:-\d{5}-of-\d{5})?\.gguf$"
)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What is known of a model without opening its files; the keys of models.toml, and what the user asked for.

    asked: the quantization that the user chose, "safetensors" for the original weights, "" when nothing was chosen.
    path: absolute; files on this machine, a directory or one file. Without a path, `gguf` or `repo` is set.
    parameters, context: 0 when not known. active: weights that one token passes through, 0 for all of them.
    sizes: bytes by quantization, where known without asking the hub.
    """

    name: str
    origin: Origin = "registry"
    asked: str = ""
    family: str = ""
    description: str = ""
    architecture: str = ""
    parameters: int = 0
    active: int = 0
    context: int = 0
    licence: str = ""
    gated: bool = False
    reasoning: bool = False
    repo: str = ""
    revision: str = "main"
    gguf: str = ""
    gguf_revision: str = "main"
    file: str = ""
    quants: tuple[str, ...] = ()
    quant: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    draft: str = ""
    aliases: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def wants_safetensors(self) -> bool:
        """Whether the original weights are meant: asked for, or the only ones there are."""
        return self.asked == SAFETENSORS or bool(self.repo and not self.gguf and not self.path)

    @property
    def chosen_quant(self) -> str:
        """The GGUF quantization to take: the one asked for, else the model's default, else ""."""
        return "" if self.wants_safetensors else self.asked or self.quant

    @property
    def source(self) -> tuple[str, str]:
        """The repository and revision that its files come from."""
        return (self.repo, self.revision) if self.wants_safetensors else (self.gguf, self.gguf_revision)

    @property
    def repos(self) -> tuple[str, ...]:
        """The repositories of its GGUF files and of its original weights, where they are known."""
        return tuple(dict.fromkeys(one for one in (self.gguf, self.repo) if one))


# What says where a model's files are on the hub, and which they are.
_OF_REPOSITORIES = frozenset(("repo", "revision", "gguf", "gguf_revision", "file", "quants", "quant", "sizes"))
_KEYS = tuple(f.name for f in dataclasses.fields(ModelSpec) if f.name not in ("name", "origin", "asked"))
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("parameters", "active", "context"), int),
    **dict.fromkeys(("gated", "reasoning"), bool),
    **dict.fromkeys(("quants", "aliases"), list),
    "sizes": dict,
}


def check_repo(text: str) -> str:
    """`text` if it is a well-formed "owner/repo", nothing else. Raises UsageError."""
    parts = text.split("/")
    fine = len(parts) == 2 and all(
        _REPO_PART.fullmatch(part) and ".." not in part and "--" not in part and not part.endswith(".git")
        for part in parts
    )
    if not fine:
        raise UsageError(
            f"{text!r} is not the name of a repository.",
            hint="Write owner/repo or owner/repo:QUANT, for example Qwen/Qwen3-8B-GGUF:Q4_K_M.",
        )
    return text


def quant_of(file_name: str) -> str:
    """The quantization that a GGUF file's name ends with, in upper case, or "" when it names none."""
    match = _QUANT.search(file_name)
    return match[1].upper() if match else ""


# --- reading the files -----------------------------------------------------------------------------------------------


def _is_there(path: Path) -> bool:
    """Whether there is something, or the system refuses to say: reading it tells why it is no file."""
    try:
        return path.is_file() or path.is_dir() or path.is_symlink()
    except OSError:
        return True


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(f"{path} cannot be read: {reason}.", hint="Mend the file, or move it away.") from error


def _check_value(path: Path, name: str, key: str, value: Any) -> Any:
    """The value as ModelSpec holds it. Raises ConfigError for the wrong type."""
    wanted = _TYPES.get(key, str)
    bad = type(value) is not wanted or (isinstance(value, int) and value < 0)
    if wanted is list:
        bad = bad or not all(isinstance(item, str) and item for item in value)
    if wanted is dict:
        bad = bad or not all(type(item) is int and item >= 0 for item in value.values())
    if bad:
        kind = {int: "a whole number", bool: "true or false", list: "a list of strings", dict: "a table of bytes"}
        raise ConfigError(f"{path}: [{name}] {key} is {value!r}.", hint=f"It must be {kind.get(wanted, 'a string')}.")
    if key == "path":
        return _own_path(path, name, value)
    if key in ("repo", "gguf") and value:
        try:
            check_repo(value)
        except UsageError as error:
            raise ConfigError(f"{path}: [{name}] {key}: {error.message}", hint=error.hint) from error
    return tuple(value) if wanted is list else value


def _own_path(path: Path, name: str, text: str) -> Path:
    """What a path in the file `path` means, which is relative to it. Raises ConfigError for one that is none."""
    try:
        own = Path(text).expanduser()
    except RuntimeError:  # no such user
        own = None
    if own is None or not text or "\x00" in text:
        raise ConfigError(f"{path}: [{name}] path is {text!r}.", hint="Give a .gguf file, or a directory with a model.")
    return (path.parent / own).absolute()


def _read_models(path: Path) -> dict[str, dict[str, Any]]:
    """Checked keys by model name. Raises ConfigError, naming the file and the nearest known key."""
    models: dict[str, dict[str, Any]] = {}
    for name, table in _read_toml(path).items():
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{path}: {name!r} cannot be the name of a model.",
                hint="Names have lower-case letters, digits, '.', '_' and '-'.",
            )
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} is not a table.", hint=f'Write ["{name}"], and its keys below.')
        for key in table:
            if key not in _KEYS:
                raise ConfigError(f"{path}: [{name}] has the unknown key {key!r}.", hint=nearest_hint(key, _KEYS))
        models[name] = {key: _check_value(path, name, key, value) for key, value in table.items()}
    return models


def _build(path: Path, name: str, values: Mapping[str, Any]) -> ModelSpec:
    spec = ModelSpec(name=name, **values)
    if not (spec.repo or spec.gguf or spec.path):
        raise ConfigError(f"{path}: [{name}] says nowhere where its files are.", hint="Give repo, gguf or path.")
    if spec.gguf and "{quant}" not in spec.file and spec.quants:
        raise ConfigError(f"{path}: [{name}] file must have {{quant}} in it.", hint='Such as "Model-{quant}.gguf".')
    if spec.quant and spec.quant not in spec.quants:
        hint = f"It has: {', '.join(spec.quants) or 'none, so leave quant out'}."
        raise ConfigError(f"{path}: [{name}] quant {spec.quant!r} is not one of its quants.", hint=hint)
    return spec


# --- the registry ----------------------------------------------------------------------------------------------------


class Registry:
    """All models known by name. Made once from its files; `resolve` also takes repositories and paths."""

    def __init__(self, specs: Iterable[ModelSpec], made: Path | None = None) -> None:
        """made: the directory of the models that `runner quantize` made, one directory each."""
        self._specs = {spec.name: spec for spec in specs}
        self._aliases = {alias.lower(): spec.name for spec in self._specs.values() for alias in spec.aliases}
        self._made = made

    @classmethod
    def load(cls, builtin_file: Path, user_file: Path | None = None, made: Path | None = None) -> Registry:
        """Read the built-in file and lay the user's over it, key by key. Raises ConfigError, naming the file."""
        values = _read_models(builtin_file)
        source = dict.fromkeys(values, builtin_file)
        if user_file is not None and _is_there(user_file):
            for name, table in _read_models(user_file).items():
                # A model that moves to files of the user's own has no repository, and the other way round.
                moved = _OF_REPOSITORIES if "path" in table else frozenset[str]()
                moved |= {"path"} if table.keys() & {"repo", "gguf"} else set()
                base = {key: value for key, value in values.get(name, {}).items() if key not in moved}
                values[name] = {**base, **table}
                source[name] = user_file
        return cls((_build(source[name], name, table) for name, table in values.items()), made)

    @classmethod
    def load_for(cls, paths: Paths | None = None) -> Registry:
        """The registry of this user: the file that ships with runner, their own file, and the models they made."""
        paths = paths or user_paths()
        return cls.load(builtin("models.toml"), paths.user_models_file, paths.models)

    @property
    def specs(self) -> tuple[ModelSpec, ...]:
        """The models of the files, in their order."""
        return tuple(self._specs.values())

    def made(self) -> tuple[ModelSpec, ...]:
        """The finished models that `runner quantize` made here, by name."""
        found = finished(self._made) if self._made is not None else {}
        return tuple(ModelSpec(name=name, origin="made", path=path) for name, path in found.items())

    def search(self, query: str) -> tuple[ModelSpec, ...]:
        """The models of the files in whose names, family, repositories or description all words of `query` are."""
        words = query.lower().split()

        def text(spec: ModelSpec) -> str:
            return " ".join((spec.name, *spec.aliases, spec.family, spec.repo, spec.gguf, spec.description)).lower()

        return tuple(spec for spec in self.specs if words and all(word in text(spec) for word in words))

    def known_repo(self, repo: str) -> ModelSpec | None:
        """The first model whose files come from that repository."""
        lower = repo.lower()
        return next((spec for spec in self.specs if lower in (spec.gguf.lower(), spec.repo.lower())), None)

    def resolve(self, text: str) -> ModelSpec:
        """The model that `text` means.

        A name of the models made here, then of the registry, each with an optional ":QUANT" or ":safetensors"; a path
        that exists; "owner/repo[:QUANT]"; "fake". Raises UnknownModel with the nearest names, and UsageError for a path
        that is not there, a quantization that the model does not have, and names that no repository can have.
        """
        text = text.strip()
        if not text or "\x00" in text:
            raise UsageError(
                "The name of the model is empty or has a NUL in it.", hint="`runner ls --all` lists names."
            )
        if (spec := self._by_name(text)) is not None:
            return spec
        if text == FAKE:
            return ModelSpec(name=FAKE, origin="fake", description="Scripted answers, for tests and demonstrations.")
        if (spec := _by_path(text)) is not None:
            return spec
        if "/" in text:
            return self._by_repo(text)
        raise self._unknown(text)

    def _by_name(self, text: str) -> ModelSpec | None:
        names = {**self._specs, **{spec.name: spec for spec in self.made()}}
        if text in names:  # a name made here may have a colon of its own
            return names[text]
        name, colon, quant = text.partition(":")
        spec = names.get(name) or names.get(self._aliases.get(name.lower(), name.lower()))
        if spec is None or not colon:
            return spec
        return _with_quant(spec, quant)

    def _by_repo(self, text: str) -> ModelSpec:
        repo, colon, asked = text.partition(":")
        check_repo(repo)
        if colon and not re.fullmatch(r"[A-Za-z0-9_-]+", asked):
            raise UsageError(f"{asked!r} is not a quantization.", hint="Such as Q4_K_M, Q8_0, F16 or safetensors.")
        asked = SAFETENSORS if asked.lower() == SAFETENSORS else asked.upper()
        known = self.known_repo(repo)
        base = known or ModelSpec(name=repo)
        is_of_original = known is not None and known.repo.lower() == repo.lower() != known.gguf.lower()
        is_original = is_of_original and asked in ("", SAFETENSORS)  # a quantization is refused where it has none
        return dataclasses.replace(
            base,
            name=text,
            origin="hub",
            asked=SAFETENSORS if is_original else asked,
            # Which of the two a repository holds is seen in its list of files (prepare.py).
            repo=repo,
            gguf="" if is_original else repo,
            revision="main",
            gguf_revision="main",
            file="",
            quants=(),
            quant="",
            sizes={},
            aliases=(),
            path=None,
        )

    def _unknown(self, text: str) -> UnknownModel:
        output = text.removesuffix(PARTIAL_SUFFIX)
        if self._made is not None and os.path.exists(partial := self._made / (output + PARTIAL_SUFFIX)):
            return UnknownModel(f"{output} is not finished.", hint=remedies(partial))
        name = text.partition(":")[0]
        names = [*self._specs, *self._aliases, *(spec.name for spec in self.made())]
        near = nearest(name, names)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`runner ls --all` lists the names."
        if os.path.exists(text):
            hint = f"To mean the file or directory of that name, write ./{text}. {hint}"
        return UnknownModel(f"There is no model {text!r}.", hint=f"{hint} A repository is written owner/repo.")


def _with_quant(spec: ModelSpec, quant: str) -> ModelSpec:
    """`spec` with that quantization chosen, in any case. Raises UsageError with those that it has."""
    offered = [*spec.quants, *([SAFETENSORS] if spec.repo else [])]
    found = next((one for one in offered if one.lower() == quant.lower()), None)
    if found is None:
        hint = f"It has: {', '.join(offered)}." if offered else "It is one set of files: leave the part after ':' out."
        raise UsageError(f"{spec.name} has no quantization {quant!r}.", hint=hint)
    return dataclasses.replace(spec, asked=found)


def _looks_like_path(text: str) -> bool:
    return (
        text.startswith(("/", "./", "../", "~", ".\\", "..\\"))
        or text in (".", "..")
        or text.endswith("/")
        or text.count("/") > 1
        or "\\" in text
        or _DRIVE.match(text) is not None
        or text.lower().endswith((".gguf", ".safetensors", SCRIPT_SUFFIX))
    )


def _by_path(text: str) -> ModelSpec | None:
    """The model at that path; None when `text` is not a path. A directory "a/b" that exists wins over a repository."""
    if not _looks_like_path(text) and "/" not in text:
        return None
    try:
        path = Path(text).expanduser().absolute()
        exists = path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, embedded NUL
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise UsageError(f"{text!r} is not a usable path: {reason}.", hint="Give the path in full.") from error
    if exists:
        return ModelSpec(name=path.name or str(path), origin="path", path=path)
    if _looks_like_path(text):
        raise UsageError(
            f"There is no file or directory {text!r}.",
            hint="Give a .gguf file, a directory with a model in it, a name from `runner ls --all`, or owner/repo.",
        )
    return None
