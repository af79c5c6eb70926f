"""The hub's answers in JSON, read into values: what a repository holds, and what a search found.

Pure, and strict about what is used: an answer is a stranger's text. What is not used may be anything. It knows nothing
of how an answer was had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from runner.errors import BadModelFile
from runner.hub.listing import Found, Listing, RemoteFile, check_file_name

MAX_SIZE_BYTES = 2**53  # what JSON numbers hold exactly
_HEX = re.compile(r"[0-9a-f]+")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?=T)")
_FORMATS = ("gguf", "safetensors")


class BadAnswer(ValueError):
    """An answer that is not what the hub's API gives; the text says where."""


def read_listing(answer: Any, repo: str, revision: str) -> Listing:
    """What the API says of a repository. Raises BadAnswer, and BadModelFile for names that are not safe to write."""
    plain = _mapping(answer, "the answer")
    siblings = _list(plain.get("siblings"), "the list of files")
    files = tuple(_remote_file(_mapping(sibling, "a file")) for sibling in siblings)
    _check_folders(files)
    name = _text(plain.get("id"), "the name") or repo
    return Listing(
        repo=repo,
        revision=revision,
        commit=_hex(plain.get("sha"), (40,), "the commit", is_needed=True),
        is_gated=bool(plain.get("gated")),
        files=files,
        renamed_to=name if name.casefold() != repo.casefold() else "",
    )


def read_found(answer: Any, limit: int) -> tuple[Found, ...]:
    """At most `limit` results of a search. Raises BadAnswer."""
    return tuple(_found(_mapping(one, "a result")) for one in _list(answer, "the answer")[:limit])


def _remote_file(plain: Mapping[str, Any]) -> RemoteFile:
    name = check_file_name(_text(plain.get("rfilename"), "a file's name"))
    about = f"of {name[:100]}"
    large = _mapping(plain.get("lfs") or {}, f"the storage {about}")
    return RemoteFile(
        name,
        _number(plain.get("size"), f"the size {about}"),
        sha256=_hex(large.get("sha256"), (64,), f"the SHA-256 {about}"),
        blob_id=_hex(plain.get("blobId"), (40, 64), f"the hash {about}"),
    )


def _check_folders(files: Sequence[RemoteFile]) -> None:
    """Raise BadModelFile for a file that is another's folder: no git repository has that."""
    names = {file.name for file in files}
    folders = {str(folder) for name in names if "/" in name for folder in PurePosixPath(name).parents}
    if both := names & folders:
        raise BadModelFile(
            f"The repository has {min(both)!r} as a file and as a folder.", hint="Do not use this repository."
        )


def _found(plain: Mapping[str, Any]) -> Found:
    tags = {tag for tag in _list(plain.get("tags"), "the tags") if isinstance(tag, str)}
    date = _DATE.match(str(plain.get("lastModified")))
    return Found(
        repo=_text(plain.get("id"), "a name"),
        downloads=_number(plain.get("downloads"), "the downloads"),
        likes=_number(plain.get("likes"), "the likes"),
        updated=date[0] if date else "",
        is_gated=bool(plain.get("gated")),
        num_parameters=_num_parameters(plain),
        formats=tuple(name for name in _FORMATS if name in tags),
    )


def _num_parameters(plain: Mapping[str, Any]) -> int:
    """From the headers of the weights, as the hub has read them."""
    totals = [_mapping(plain.get(form) or {}, form).get("total") for form in ("safetensors", "gguf")]
    return next((total for total in totals if type(total) is int and 0 < total < MAX_SIZE_BYTES), 0)


# --- the kinds of value; None where nothing was said ---


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadAnswer(f"{what} is {_kind(value)}")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, list):
        raise BadAnswer(f"{what} is {_kind(value)}")
    return value or ()


def _text(value: Any, what: str) -> str:
    if value is not None and not isinstance(value, str):
        raise BadAnswer(f"{what} is {_kind(value)}")
    return value or ""


def _number(value: Any, what: str) -> int:
    if value is not None and (type(value) is not int or not 0 <= value < MAX_SIZE_BYTES):
        raise BadAnswer(f"{what} is {_kind(value)}")
    return value or 0


def _hex(value: Any, lengths: Sequence[int], what: str, *, is_needed: bool = False) -> str:
    text = _text(value, what).lower()
    if (text or is_needed) and not (_HEX.fullmatch(text) and len(text) in lengths):
        raise BadAnswer(f"{what} is {text[:70]!r}")
    return text


def _kind(value: Any) -> str:
    """How a message names a value that should not be there."""
    if isinstance(value, (dict, list)):
        return "a list" if isinstance(value, list) else "an object"
    return repr(value)[:70]
