"""The model hub over the network: what is there, and fetching it into the Hugging Face cache.

huggingface_hub answers what repositories hold (api), our own transfer moves the bytes (download, transfer, ranged);
both are imported when one of them runs. This package knows nothing of formats or of which files a model needs.
"""

from runner.hub.api import list_files, search
from runner.hub.download import FetchOptions, fetch, fetch_each
from runner.hub.listing import Found, Listing, RemoteFile, check_file_name
from runner.hub.progress import FetchState, FileState, Troubles
from runner.hub.ranged import RemoteReader, read_range

__all__ = [
    "FetchOptions",
    "FetchState",
    "FileState",
    "Found",
    "Listing",
    "RemoteFile",
    "RemoteReader",
    "Troubles",
    "check_file_name",
    "fetch",
    "fetch_each",
    "list_files",
    "read_range",
    "search",
]
