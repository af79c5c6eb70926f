"""Settings files: finding the project's, and reading one with errors that name its line.

A file is flat TOML: `temperature = 0.7`. This file knows the table of settings and not which file wins.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from runner.errors import ConfigError
from runner.settings.table import setting

PROJECT_FILE = "runner.toml"


def project_file(cwd: Path, home: Path) -> Path | None:
    """The nearest runner.toml in `cwd` or above it, or None. The search ends at `home`, outside of it at the root."""
    for folder in (cwd, *cwd.parents):
        if (folder / PROJECT_FILE).is_file():
            return folder / PROJECT_FILE
        if folder == home:
            break
    return None


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a file, checked; {} when it does not exist. Raises ConfigError with the file and line."""
    text = read_text(path)
    if not text:
        return {}
    import tomllib

    try:
        found = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits and brackets 5000 deep are no TOML errors
        where = re.search(r"at line (\d+), column (\d+)", str(error))
        place = f"{path}:{where[1]}" if where else f"{path}:{text.count(chr(10)) + 1}"
        reason = str(error).split(" (at ")[0]
        raise ConfigError(
            f"{place} is not valid TOML: {reason}.", hint='Write one setting a line: key = "value"'
        ) from error
    values = {}
    for key, value in found.items():
        try:
            if isinstance(value, dict):
                key = f"{key}.{next(iter(value))}" if value else key
                raise ConfigError(f"There is no setting {key!r}.", hint=_without_section(key))
            values[key] = setting(key).check(value)
        except ConfigError as error:
            raise ConfigError(f"{path}:{_line_of(key, text)}: {error.message}", hint=error.hint) from error
    return values


def read_text(path: Path) -> str:
    """The text of a settings file, "" when it does not exist. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text.", hint="Save it as UTF-8.") from error
    except NotADirectoryError as error:
        raise ConfigError(
            f"{path} cannot be read: what it should lie in is a file.",
            hint="Where RUNNER_HOME or XDG_CONFIG_HOME is set, it is to name a directory.",
        ) from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a directory, and settings are a file.", hint="Move it away.") from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}.", hint="Check its permissions."
        ) from error


def _without_section(key: str) -> str:
    """Settings have no sections; the last part of a dotted name is often what was meant."""
    last = key.rpartition(".")[2]
    try:
        setting(last)
    except ConfigError as error:
        return error.hint
    return f"Settings have no sections: write {last} = … at the top of the file."


def _line_of(key: str, text: str) -> int:
    """The line where `key` is given a value, or where its section begins; 1 when it cannot be found."""
    section, _, name = key.rpartition(".")
    lines = text.splitlines()
    pattern = re.compile(rf"""\s*["']?{re.escape(name)}["']?\s*[=.]""")
    opening = re.compile(rf"""\s*\[+\s*["']?{re.escape(section or name)}["']?\s*\]""")
    for wanted in (pattern, opening):
        for number, line in enumerate(lines, 1):
            if wanted.match(line):
                return number
    return 1
