"""How a model is named where there is little room. It reads no disk."""

from __future__ import annotations

from pathlib import PurePath

_PATH_BEGINS = ("/", "./", "../", "~")


def short_name(model: str) -> str:
    """The last part of a path; any other name as it stands: `owner/repo` is the name of a repository."""
    return PurePath(model).name or model if model.startswith(_PATH_BEGINS) else model
