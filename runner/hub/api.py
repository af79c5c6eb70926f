"""What the hub holds, in the words of huggingface_hub's API: the files of a repository, and searching.

The library is imported when something is asked. This file moves no contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner.errors import RunnerError
from runner.hub import errors
from runner.hub.errors import Asked
from runner.hub.http import Tuning, asked_of, client_options, origin, use_library_quietly
from runner.hub.listing import Found, Listing, RemoteFile, check_file_name
from runner.hub_cache import hub_settings
from runner.registry import check_repo

_API_TIMEOUT_S = 30
SEARCHING = Tuning(stall_timeout_s=20.0)
_FORMATS = ("gguf", "safetensors")
_SEARCHED = ["downloads", "likes", "lastModified", "gated", "safetensors", "gguf", "tags"]


def list_files(repo: str, revision: str = "main") -> Listing:
    """Ask the hub what `repo` holds; a renamed repository is followed, and the listing says its new name.

    Raises UsageError for no such repository, revision or access, BusyError for no connection, BadModelFile for file
    names that are not safe to write.
    """
    asked = asked_of(check_repo(repo), revision)
    with _asking(asked) as api:
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=_API_TIMEOUT_S)
    commit = str(info.sha or "")
    if len(commit) != 40 or not set(commit) <= set("0123456789abcdef"):
        raise RunnerError(f"The hub gave no commit for {repo}.", hint="Is HF_ENDPOINT right?")
    files = tuple(_remote_file(sibling) for sibling in info.siblings or [])
    name = str(info.id or repo)
    renamed_to = name if name.casefold() != repo.casefold() else ""
    return Listing(repo, revision, commit, bool(info.gated), files, renamed_to)


def search(query: str, *, limit: int = 20) -> tuple[Found, ...]:
    """The repositories that the hub finds for `query`, the most downloaded first.

    Raises BusyError for no connection, UsageError for a refused token.
    """
    with _asking(asked_of("")):
        import httpx2
        from huggingface_hub import ModelInfo

        hub = origin()
        url = f"{hub.endpoint}/api/models"
        wanted: dict[str, Any] = {"search": query, "sort": "downloads", "limit": limit, "expand": _SEARCHED}
        # Not by the library's list_models: without a connection that tries for 23 s, and tells the terminal of each.
        with httpx2.Client(**client_options(SEARCHING)) as client:
            answer = client.get(url, params=wanted, headers=hub.headers(url), follow_redirects=True)
        answer.raise_for_status()
        read: Any = ModelInfo  # it has no types
        return tuple(_found(read(**plain)) for plain in answer.json()[:limit])


def _remote_file(sibling: Any) -> RemoteFile:
    sha256 = sibling.lfs.sha256 if sibling.lfs else ""
    return RemoteFile(check_file_name(sibling.rfilename), sibling.size or 0, sha256 or "", sibling.blob_id or "")


def _found(info: Any) -> Found:
    tags = set(info.tags or ())
    return Found(
        repo=str(info.id),
        downloads=int(info.downloads or 0),
        likes=int(info.likes or 0),
        updated=info.last_modified.date().isoformat() if info.last_modified else "",
        is_gated=bool(info.gated),
        num_parameters=_num_parameters(info),
        formats=tuple(name for name in _FORMATS if name in tags),
    )


def _num_parameters(info: Any) -> int:
    """From the headers of the weights, as the hub has read them."""
    if info.safetensors is not None and info.safetensors.total:
        return int(info.safetensors.total)
    gguf = info.gguf if isinstance(info.gguf, dict) else {}
    total = gguf.get("total")
    return total if isinstance(total, int) else 0


@contextmanager
def _asking(asked: Asked) -> Iterator[Any]:
    """HfApi for one question; its errors become ours."""
    settings = hub_settings()
    if settings.is_offline:
        raise errors.offline(asked)
    use_library_quietly()
    import httpx2
    from huggingface_hub import HfApi

    has_token = bool(origin().authorization)
    try:
        yield HfApi(endpoint=settings.endpoint, library_name="runner")
    except RunnerError:
        raise
    except httpx2.TransportError as error:
        raise errors.unreachable(asked, error) from error
    except (ImportError, httpx2.InvalidURL) as error:
        raise errors.unusable_proxy(error) from error
    except Exception as error:  # the library has several kinds, and raises plain ones for an answer it cannot read
        response = getattr(error, "response", None)
        if response is not None:
            raise errors.refused(asked, response.status_code, response.headers, has_token=has_token) from error
        raise RunnerError(
            f"{settings.endpoint} gave no usable answer: {error}.", hint="Is HF_ENDPOINT right?"
        ) from error
