"""Where runner keeps things: every path the program uses is named here, by platformdirs.

RUNNER_HOME (or the argument) puts all of them under one directory, which tests and portable installs use. This file
makes directories when asked and knows nothing of what goes into them. Downloads live in the Hugging Face cache
(hub), not here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from runner.errors import ConfigError, UsageError


@dataclass(frozen=True, kw_only=True)
class Paths:
    """config: settings files. data: chats and quantized models. state: logs, engines, history. cache: kernels."""

    config: Path
    data: Path
    state: Path
    cache: Path

    @property
    def settings_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def user_models_file(self) -> Path:
        return self.config / "models.toml"

    @property
    def database(self) -> Path:
        return self.data / "chats.sqlite3"

    @property
    def models(self) -> Path:
        """Models made on this machine (`runner quantize`)."""
        return self.data / "models"

    @property
    def drafts(self) -> Path:
        """Drafters trained on this machine (`runner draft train`)."""
        return self.data / "drafts"

    @property
    def log_file(self) -> Path:
        return self.state / "runner.log"

    @property
    def fit_history(self) -> Path:
        """What earlier loads were estimated to take and took."""
        return self.state / "fit.jsonl"

    @property
    def bench_history(self) -> Path:
        """What `runner bench` measured, a run a line."""
        return self.state / "bench.jsonl"

    @property
    def kernels(self) -> Path:
        """What Triton has compiled."""
        return self.cache / "kernels"

    @property
    def engines(self) -> Path:
        """One JSON file for each running engine process (`runner ps`)."""
        return self.state / "engines"

    @property
    def prompt_history(self) -> Path:
        return self.state / "prompt_history"


def user_paths(home: Path | None = None) -> Paths:
    """This user's paths; under `home`, else under $RUNNER_HOME, else where the platform wants them.

    Raises ConfigError.
    """
    root = home or _runner_home()
    if root is not None:
        return Paths(config=root / "config", data=root / "data", state=root / "state", cache=root / "cache")
    dirs = platformdirs.PlatformDirs("runner", appauthor=False)
    return Paths(
        config=dirs.user_config_path,
        data=dirs.user_data_path,
        state=dirs.user_state_path,
        cache=dirs.user_cache_path,
    )


def expanded(path: Path) -> Path:
    """The path with ~ as a home directory. Raises UsageError."""
    try:
        return path.expanduser()
    except RuntimeError as error:  # ~nobody
        raise UsageError(f"{str(path)!r}: there is no such user.", hint="Give the path in full.") from error


def _runner_home() -> Path | None:
    value = os.environ.get("RUNNER_HOME")
    try:
        return Path(value).expanduser() if value else None
    except RuntimeError as error:
        raise ConfigError(
            f"RUNNER_HOME is {value!r}, and there is no such user.", hint="Give the path of a directory."
        ) from error


def builtin(name: str) -> Path:
    """A file or directory that ships with runner: "models.toml", "models/demo".

    In a wheel they are inside the package (runner/_builtin); in a checkout at its root.
    """
    package = Path(__file__).parent
    inside = package / "_builtin"
    return (inside if inside.is_dir() else package.parent) / name


def private_directory(path: Path) -> Path:
    """Make `path` and its parents, each with mode 0700 where it is missing, and return it."""
    if not path.is_dir():
        if path.parent != path:
            private_directory(path.parent)
        path.mkdir(exist_ok=True, mode=0o700)
    return path


def open_private(path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> int:
    """A file descriptor of `path` with mode 0600, also when the file was there before. Raises OSError."""
    private_directory(path.parent)
    descriptor = os.open(path, flags, 0o600)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, 0o600)
    return descriptor
