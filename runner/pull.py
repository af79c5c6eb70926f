"""What pulling a model means: which files of which commit, how much of them is here, and fetching the rest.

It joins a ModelSpec, the hub's listing and the cache. It decides nothing about memory (preview.py) and draws nothing.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runner import hub
from runner.hub_cache import commit_of, file_size, repo_directory
from runner.hub_parts import leftovers
from runner.model_files import Choice
from runner.prepare import Located, listed, locate, title
from runner.registry import ModelSpec
from runner.types import CancelToken

# A vocabulary in a header takes some megabytes: of a file below this it would be more than a few per cent.
SMALL_BYTES = 256 * 10**6
# Weights, KV cache and workspace of a small model together are below this many times its weights.
SPARE_FACTOR = 16
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class PullPlan:
    """The files of one model at one commit.

    before: the commit that the revision meant here until now, "" for none. missing: the files that are not here whole.
    part_bytes: how much of those an interrupted download left.
    """

    name: str
    listing: hub.Listing
    choice: Choice
    before: str
    missing: tuple[hub.RemoteFile, ...]
    part_bytes: int

    @property
    def files(self) -> tuple[hub.RemoteFile, ...]:
        return tuple(self.listing.file(name) for name in self.choice.names)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def is_begun(self) -> bool:
        """Whether some of the weights are here already: fetching the model was decided before."""
        weights = set(self.choice.weights)
        return self.part_bytes > 0 or not weights.issubset(file.name for file in self.missing)

    def is_worth_an_estimate(self, free_bytes: int) -> bool:
        """Whether to read headers over the network before fetching, to see if the model fits `free_bytes` of memory.

        Not for a model that was begun, or is so small that its headers are much of it and there is memory to spare.
        """
        is_small = self.size_bytes < SMALL_BYTES and self.size_bytes * SPARE_FACTOR < free_bytes
        return not self.is_begun and not is_small

    @property
    def has_moved(self) -> bool:
        """Whether the revision means another commit than it did here."""
        return self.before not in ("", self.listing.commit)


def at_revision(spec: ModelSpec, revision: str) -> ModelSpec:
    """`spec` at another revision of its repository: a branch, a tag or a commit."""
    return dataclasses.replace(spec, revision=revision, gguf_revision=revision)


def here_for_good(spec: ModelSpec) -> Located | None:
    """The files of `spec` if they are here and no question to the hub could change them: its revision is a commit."""
    return locate(spec) if spec.path is None and _COMMIT.fullmatch(spec.source[1]) else None


def plan_pull(spec: ModelSpec) -> PullPlan:
    """Ask the hub what `spec` is made of now, and look what is here.

    Raises what prepare.listed raises.
    """
    repo, revision = spec.source
    listing, choice = listed(spec)
    directory = repo_directory(repo)
    missing = tuple(file for name in choice.names if not _is_here(directory, listing, file := listing.file(name)))
    wanted = {etag for file in missing for etag in (file.sha256, file.blob_id) if etag}
    return PullPlan(
        name=title(spec),
        listing=listing,
        choice=choice,
        before=listing.commit if revision == listing.commit else commit_of(repo, revision),
        missing=missing,
        part_bytes=sum(
            part.done_bytes for part in leftovers(directory).parts if part.is_resumable and part.etag in wanted
        ),
    )


def _is_here(directory: Path, listing: hub.Listing, file: hub.RemoteFile) -> bool:
    """Whether the file is in this commit's snapshot, or its blob is here from another commit."""
    paths = [directory / "snapshots" / listing.commit / hub.check_file_name(file.name)]
    paths += [directory / "blobs" / etag for etag in (file.sha256 or file.blob_id,) if etag]
    return any(file_size(path) == file.size_bytes for path in paths)


def pull(
    plan: PullPlan,
    *,
    on_progress: Callable[[hub.FetchState], None],
    cancel: CancelToken,
    options: hub.FetchOptions,
) -> Located:
    """Fetch what is missing and write down what the revision means now. Raises what hub.fetch raises."""
    names = (*plan.choice.side, *plan.choice.weights)  # the small ones first: they say what the model is
    directory = hub.fetch(plan.listing, names, on_progress=on_progress, cancel=cancel, options=options)
    return Located(directory, plan.choice)
