"""A store that stalls, breaks, lies and changes; and processes that are killed or share a volume."""

import fcntl
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.cache import PARTS_PREFIX
from shoal_runtime.storage.downloading import Download
from shoal_runtime.storage.listing import ListedFile, Listing
from shoal_runtime.storage.store import StoreUnavailable
from shoal_runtime.storage.unpacking import ArchiveLimits

FILES = {"a": b"aaaa", "empty": b"", "sub/b": b"bb" * 1000}


class Shelf:
    """A store in memory, which counts what is read of it; ``before`` is called before each chunk."""

    shown = "s3://shelf"

    def __init__(self, files: Mapping[str, bytes] = FILES) -> None:
        self.files = dict(files)
        self.read_of: list[str] = []
        self.before: Callable[[str], None] = lambda path: None
        self.lies: dict[str, int] = {}

    def list(self, at_most: int) -> Listing:
        return Listing(
            [ListedFile(path, len(body) + self.lies.get(path, 0), "", path) for path, body in self.files.items()]
        )

    def read(self, entry: ListedFile) -> Iterator[bytes]:
        self.read_of.append(entry.path)
        for start in range(0, len(self.files[entry.path]), 500):
            self.before(entry.path)
            yield self.files[entry.path][start : start + 500]


def download(store: Shelf, cache: Path, readiness: Readiness | None = None) -> dict[str, bytes]:
    """Return what was brought, by path; nothing when another process brought it."""
    kept: dict[str, bytes] = {}
    download = Download(
        store,
        cache,
        readiness or Readiness(),
        limits=ArchiveLimits(),
        deadline_s=float("inf"),
        pause_s=lambda attempt: 0.0,
    )

    def keep(folder: Path, sums: Mapping[str, str]) -> None:
        assert set(sums) == set(store.files)
        kept.update({path: (folder / path).read_bytes() for path in sums})

    download.download(download.list(), keep)
    return kept


def test_all_files_come_and_nothing_else_stays(tmp_path: Path) -> None:
    assert download(Shelf(), tmp_path) == FILES
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_was_killed_goes_on_behind_the_files_that_are_complete(tmp_path: Path) -> None:
    store = Shelf()

    def kill(path: str) -> None:
        if path == "sub/b":
            raise KeyboardInterrupt

    store.before = kill
    with pytest.raises(KeyboardInterrupt):
        download(store, tmp_path)
    store.before, store.read_of = lambda path: None, []

    assert download(store, tmp_path) == FILES
    assert store.read_of == ["sub/b"]


def test_a_file_whose_reading_breaks_is_read_again_and_others_are_not(tmp_path: Path) -> None:
    store, breaks = Shelf(), iter(["sub/b", "sub/b"])

    def break_down(path: str) -> None:
        if path == "sub/b" and next(breaks, None):
            raise StoreUnavailable("reset")

    store.before = break_down

    assert download(store, tmp_path) == FILES
    assert store.read_of == ["a", "empty", "sub/b", "sub/b", "sub/b"]


def test_what_is_rejected_when_it_is_whole_is_thrown_away(tmp_path: Path) -> None:
    download = Download(
        Shelf(), tmp_path, Readiness(), limits=ArchiveLimits(), deadline_s=float("inf"), pause_s=lambda attempt: 0.0
    )

    def refuse(folder: Path, sums: Mapping[str, str]) -> None:
        raise LoadError("another checksum")

    with pytest.raises(LoadError, match="another checksum"):
        download.download(download.list(), refuse)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("lie", "expected"), [(-1, "larger than listed"), (1, "ended after 4 of 5 bytes")])
def test_a_file_of_another_size_than_listed_is_rejected(lie: int, expected: str, tmp_path: Path) -> None:
    store = Shelf()
    store.lies["a"] = lie

    with pytest.raises(LoadError, match=expected):
        download(store, tmp_path)


def test_two_processes_on_one_volume_download_once(tmp_path: Path) -> None:
    store, waiting = Shelf(), Readiness()
    begun, go = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        begun.set()
        assert go.wait(30)

    store.before = hold
    results: list[dict[str, bytes]] = []
    first = threading.Thread(target=lambda: results.append(download(store, tmp_path)))
    first.start()
    assert begun.wait(30)
    second = threading.Thread(target=lambda: results.append(download(store, tmp_path, waiting)))
    second.start()
    while "waiting for another process" not in waiting.reason:
        assert second.is_alive()
    go.set()
    first.join()
    second.join()

    assert sorted(results, key=len) == [{}, FILES]
    assert store.read_of == list(FILES)


def test_a_wait_for_another_process_waits_no_longer_than_a_model_may_take(tmp_path: Path) -> None:
    store = Shelf()
    parts = tmp_path / f"{PARTS_PREFIX}{store.list(9).digest()}"
    parts.mkdir()
    lock = os.open(parts, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    download = Download(
        store, tmp_path, Readiness(), limits=ArchiveLimits(timeout_s=0.0), deadline_s=0.0, pause_s=lambda attempt: 0.0
    )

    with pytest.raises(LoadError, match="SHOAL_MODEL_FETCH_TIMEOUT_S"):
        download.download(store.list(9), lambda folder, sums: None)
    os.close(lock)
