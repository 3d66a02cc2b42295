"""The Hugging Face hub: `hf://OWNER/NAME[@REVISION][/PATH]`.

A revision that moves, a branch or a tag, is resolved to its commit once, and all files are those of that commit. The
token and the hub's address are found as huggingface_hub finds them (`HF_TOKEN`, `HF_ENDPOINT`).
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
from shoal_runtime.storage.listing import Entry, Listing, below, bounded
from shoal_runtime.storage.store import GIVEN_IN, StoreAway
from shoal_runtime.storage.web import verified, why_away
from shoal_runtime.unpacking import CHUNK_BYTES
from shoal_schema.resource.locations import Location, parse

TIMEOUT: Final = httpx2.Timeout(60.0, connect=10.0)
SAFETENSORS: Final = ".safetensors"
REPEATED: Final = (".bin", ".h5", ".msgpack", ".ot", ".onnx", ".tflite", ".ckpt")
"""The same weights for other frameworks, often larger than all the rest; not brought where there are safetensors."""


class Hub:
    """One repository's files at one commit."""

    def __init__(self, location: Location, shown: str) -> None:
        self._repository = location.authority
        self._path = location.path
        self._revision = location.revision or "main"
        set_client_factory(partial(_client, event_hooks={"request": [hf_request_event_hook]}, timeout=None))
        self._api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        self.shown = shown

    def list(self, at_most: int) -> Listing:
        """Return the files that serving may need."""
        with _mapped(self.shown):
            info = self._api.model_info(self._repository, revision=self._revision, timeout=60.0)
            self._revision = info.sha or self._revision
            tree = self._api.list_repo_tree(self._repository, recursive=True, revision=self._revision)
            files = (_entry(item) for item in tree if isinstance(item, RepoFile))
            found = list(bounded((file for file in files if _is_at(file, self._path)), at_most))
        if [each.key for each in found] == [self._path]:
            return Listing(found, found[0].path)
        return Listing(needed(below(self._path, found)))

    def read(self, entry: Entry) -> Iterator[bytes]:
        """Yield a file of the commit that was listed."""
        url = hf_hub_url(self._repository, entry.key, revision=self._revision, endpoint=self._api.endpoint)
        with (
            _mapped(f"{self.shown} ({entry.path})"),
            # On to where large files lie, which the token is not for: httpx2 sends it to no other host.
            _client(headers=build_hf_headers(), timeout=TIMEOUT) as client,
            client.stream("GET", url) as response,
        ):
            if response.status_code != 200:
                raise _refused(f"{self.shown} ({entry.path})", response.status_code)
            yield from response.iter_bytes(CHUNK_BYTES)


def _address() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _client(**more: Any) -> httpx2.Client:
    return httpx2.Client(follow_redirects=True, verify=verified(_address()), **more)


def open_store(uri: str) -> Hub:
    """Return the repository that a `hf://` URI names."""
    return Hub(parse(uri), uri)


def needed(entries: Sequence[Entry]) -> list[Entry]:
    """Return the files without the hub's own, and without weights that are there as safetensors too."""
    safe = any(entry.path.endswith(SAFETENSORS) for entry in entries)
    return [
        entry
        for entry in entries
        if not entry.path.startswith(".git") and not (safe and PurePosixPath(entry.path).suffix in REPEATED)
    ]


def _is_at(file: Entry, path: str) -> bool:
    return not path or file.key == path or file.key.startswith(f"{path}/")


def _entry(file: RepoFile) -> Entry:
    validator = file.lfs.sha256 if file.lfs is not None else file.blob_id
    return Entry(file.path.rpartition("/")[2], file.size, validator, file.path)


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Say in a sentence what the hub's library raises."""
    try:
        yield
    except GatedRepoError:
        raise LoadError(
            f"{what} is gated: accept its terms on the hub, and give a token that has (HF_TOKEN, {GIVEN_IN})"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise LoadError(
            f"there is no {what}, or the token that was found (HF_TOKEN, {GIVEN_IN}) may not read it: correct the name,"
            " or give a token that may"
        ) from None
    except RevisionNotFoundError:
        raise LoadError(f"there is no such revision: {what}: name a branch, a tag or a commit that is there") from None
    except EntryNotFoundError:
        raise LoadError(f"there is nothing at {what}: correct the path behind the repository's name") from None
    except HfHubHTTPError as error:
        raise _refused(what, error.response.status_code) from None
    except (KeyError, TypeError, ValueError, AttributeError):  # as its library takes every answer for the hub's
        raise LoadError(f"{what}: what was asked does not answer as the hub does: is HF_ENDPOINT right?") from None
    except (httpx2.HTTPError, OfflineModeIsEnabled) as error:
        raise StoreAway(why_away(_address(), error)) from None


def _refused(what: str, status: int) -> Exception:
    again = status >= 500 or status == 429
    if again:
        return StoreAway(f"the hub answered {status}")
    return LoadError(f"{what}: the hub answered {status}: are its name, and HF_ENDPOINT, right?")
