"""Store for models on the Hugging Face hub: `hf://OWNER/NAME[@REVISION][/PATH]`.

A branch or tag is resolved to its commit once, and all files are read from this commit. Token and address of the hub
come from the variables of huggingface_hub (`HF_TOKEN`, `HF_ENDPOINT`).
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

import httpx2
from huggingface_hub import HfApi, hf_hub_url, set_client_factory
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import hf_request_event_hook

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.listing import ListedFile, Listing, below, bounded
from shoal_runtime.storage.store import GIVEN_IN, StoreUnavailable
from shoal_runtime.storage.unpacking import CHUNK_BYTES
from shoal_runtime.storage.web import tls_context_for, why_unreachable
from shoal_schema.resource.locations import Location, parse

TIMEOUT: Final = httpx2.Timeout(60.0, connect=10.0)
SAFETENSORS: Final = ".safetensors"
REPEATED: Final = (".bin", ".h5", ".msgpack", ".ot", ".onnx", ".tflite", ".ckpt")
"""Suffixes of the same weights for other frameworks, often the largest files; skipped if there are safetensors."""


class HubRepository:
    """Files of one hub repository at one commit."""

    def __init__(self, location: Location, shown: str) -> None:
        self._repository = location.authority
        self._path = location.path
        self._revision = location.revision or "main"
        set_client_factory(partial(_client, event_hooks={"request": [hf_request_event_hook]}, timeout=None))
        self._api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        self.shown = shown

    def list(self, at_most: int) -> Listing:
        """List the files that serving may need."""
        with _mapped(self.shown):
            info = self._api.model_info(self._repository, revision=self._revision, timeout=60.0)
            # Pinned: a branch may move during the download.
            self._revision = info.sha or self._revision
            tree = self._api.list_repo_tree(self._repository, recursive=True, revision=self._revision)
            files = (
                ListedFile(
                    each.path.rpartition("/")[2],
                    each.size,
                    each.blob_id if each.lfs is None else each.lfs.sha256,
                    each.path,
                )
                for each in tree
                if isinstance(each, RepoFile)
            )
            path = self._path
            wanted = (each for each in files if not path or each.key == path or each.key.startswith(f"{path}/"))
            found = list(bounded(wanted, at_most))
        if [each.key for each in found] == [self._path]:
            return Listing(found, found[0].path)
        return Listing(needed_files(below(self._path, found)))

    def read(self, entry: ListedFile) -> Iterator[bytes]:
        """Yield the content of a file at the listed commit."""
        url = hf_hub_url(self._repository, entry.key, revision=self._revision, endpoint=self._api.endpoint)
        with (
            _mapped(f"{self.shown} ({entry.path})"),
            # Follows redirects to the storage of large files; httpx2 sends the token to no other host.
            _client(headers=build_hf_headers(), timeout=TIMEOUT) as client,
            client.stream("GET", url) as response,
        ):
            if response.status_code != 200:
                raise _refused(f"{self.shown} ({entry.path})", response.status_code)
            yield from response.iter_bytes(CHUNK_BYTES)


def _address() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _client(**more: Any) -> httpx2.Client:
    return httpx2.Client(follow_redirects=True, verify=tls_context_for(_address()), **more)


def open_store(uri: str) -> HubRepository:
    """Return the repository at an `hf://` URI."""
    return HubRepository(parse(uri), uri)


def needed_files(entries: Sequence[ListedFile]) -> list[ListedFile]:
    """Return the files of a repository that serving may need.

    Omitted are git's files, such as `.gitattributes`, and weights in other formats if there are safetensors.
    """
    safe = any(entry.path.endswith(SAFETENSORS) for entry in entries)
    return [
        entry
        for entry in entries
        if not entry.path.startswith(".git") and not (safe and PurePosixPath(entry.path).suffix in REPEATED)
    ]


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Raise errors of huggingface_hub as `LoadError` or `StoreUnavailable`."""
    try:
        yield
    except GatedRepoError:
        raise LoadError(
            f"{what} is gated. Accept its terms on the hub, and give a token of that account (HF_TOKEN, {GIVEN_IN})"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise LoadError(
            f"{what} does not exist, or the token (HF_TOKEN, {GIVEN_IN}) may not read it. Correct the name, or give"
            " a token that may"
        ) from None
    except RevisionNotFoundError:
        raise LoadError(f"the revision of {what} does not exist. Name a branch, a tag or a commit") from None
    except EntryNotFoundError:
        raise LoadError(f"{what} does not exist. Correct the path after the repository's name") from None
    except HfHubHTTPError as error:
        raise _refused(what, error.response.status_code) from None
    except (KeyError, TypeError, ValueError, AttributeError):  # the library does not check responses
        raise LoadError(f"{what}: the response does not come from a Hugging Face hub. Correct HF_ENDPOINT") from None
    except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
        raise StoreUnavailable(why_unreachable(_address(), error)) from None


def _refused(what: str, status: int) -> Exception:
    if status >= 500 or status == 429:
        return StoreUnavailable(f"the hub returned {status}")
    return LoadError(f"{what}: the hub returned {status}. Check the name and HF_ENDPOINT")
