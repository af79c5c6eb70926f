"""What the hub says of repositories, as frozen values, and which file names are safe to write.

Pure: it reaches neither the network nor the disk, and knows nothing of how the values come about.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.errors import BadModelFile, UsageError


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository.

    sha256: of its contents, for files that the hub keeps in large-file storage, else "". blob_id: git's SHA-1 of the
    blob, hex; of the contents for the small files alone, for a large one of the text that stands for it.
    """

    name: str
    size_bytes: int
    sha256: str = ""
    blob_id: str = ""


@dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit. revision: what was asked for and meant that commit.

    repo: the name that was asked for; renamed_to: the one that it has now, where that is another.
    """

    repo: str
    revision: str
    commit: str
    is_gated: bool
    files: tuple[RemoteFile, ...]
    renamed_to: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)

    def file(self, name: str) -> RemoteFile:
        """The file of that name. Raises UsageError when there is none."""
        for file in self.files:
            if file.name == name:
                return file
        raise UsageError(f"{self.repo} has no file {name!r}.", hint="Check the name; it is case-sensitive.")


@dataclass(frozen=True)
class Found:
    """One search result. updated: a date, YYYY-MM-DD, or "". num_parameters: 0 when the hub does not know.

    formats: those of "gguf" and "safetensors" that the repository has.
    """

    repo: str
    downloads: int
    likes: int
    updated: str
    is_gated: bool
    num_parameters: int
    formats: tuple[str, ...]


def check_file_name(name: str) -> str:
    """`name` if it can only mean a file inside its repository, on every system. Raises BadModelFile."""
    if not _is_safe_path(name):
        raise BadModelFile(
            f"The repository has a file with an unsafe name: {name[:200]!r}.", hint="Do not use this repository."
        )
    return name


def check_revision(revision: str) -> str:
    """`revision` if it can be a branch, a tag or a commit: it becomes the name of a file. Raises UsageError."""
    if not _is_safe_path(revision):
        raise UsageError(
            f"{revision[:200]!r} cannot be a revision.", hint="Give a branch, a tag or a commit of the repository."
        )
    return revision


def _is_safe_path(path: str) -> bool:
    """Whether `path` leads nowhere but down, and every file system can hold it."""
    return len(path) <= 512 and all(_is_safe_part(part) for part in path.split("/"))


def _is_safe_part(part: str) -> bool:
    if part in ("", ".", "..") or part.endswith((" ", ".")):
        return False
    if any(character in '\\:*?"<>|' or ord(character) < 32 or ord(character) == 127 for character in part):
        return False
    try:
        return len(part.encode()) <= 255
    except UnicodeEncodeError:  # half a character, which JSON can spell
        return False
