"""What is remembered of a download: which file a URI gave, and how to ask whether it has changed.

One small JSON file a URI, in `CACHE/origins/`. It lets a restarted process, or one that starts behind an init
container, use what is there when the server says 304, or when it cannot be reached.
"""

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True, slots=True)
class Origin:
    """The last download of one URI: the file's SHA-256 in hex, and the validators that came with it."""

    digest: str
    etag: str | None = None
    last_modified: str | None = None

    def conditions(self) -> dict[str, str]:
        """Return the request headers that ask for the file only if it has changed."""
        known = {"if-none-match": self.etag, "if-modified-since": self.last_modified}
        return {name: value for name, value in known.items() if value}


def origin_of(digest: str, headers: Mapping[str, str]) -> Origin:
    """Return what to remember of an answer."""
    return Origin(digest, headers.get("etag"), headers.get("last-modified"))


def recall(cache_dir: Path, uri: str) -> Origin | None:
    """Return what is known of ``uri``; what cannot be read is as good as nothing."""
    try:
        return Origin(**orjson.loads(_path(cache_dir, uri).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def remember(cache_dir: Path, uri: str, origin: Origin) -> None:
    """Write it down, whole or not at all."""
    path = _path(cache_dir, uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    with os.fdopen(descriptor, "wb") as file:
        file.write(orjson.dumps(asdict(origin)))
    os.replace(name, path)


def _path(cache_dir: Path, uri: str) -> Path:
    return cache_dir / "origins" / f"{hashlib.sha256(uri.encode()).hexdigest()}.json"
