import fcntl
import hashlib
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.cache import PARTIAL_PREFIX, STALE_AFTER_S, UNLOCKED_AFTER_S, remove_stale
from shoal_runtime.storage.fetching import Fetcher
from shoal_runtime.storage.unpacking import ArchiveLimits
from shoal_runtime.storage.web import reject_insecure_redirects
from tests.runtime.storage.test_unpacking import tar

CONTENT = bytes(range(256)) * 40_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Site:
    """An HTTP server on a loopback address; its answers are (status, body, claimed length)."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes, int | None]] = []
        self.asked: list[str] = []
        self.conditions: list[str | None] = []
        self.etag: str | None = None
        self.tells_length = True
        self.drips: threading.Event | None = None
        """Where set, the body comes byte by byte until the event."""
        site = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                site.conditions.append(self.headers.get("if-none-match"))
                status, body, length = site.answers.pop(0) if site.answers else (404, b"", None)
                self.send_response(status)
                if site.etag is not None:
                    self.send_header("etag", site.etag)
                if site.tells_length:
                    self.send_header("content-length", str(len(body) if length is None else length))
                self.end_headers()
                with suppress(ConnectionError):
                    while site.drips is not None and not site.drips.wait(0.01):
                        self.wfile.write(body[:1])
                    self.wfile.write(body)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def fetcher(
    cache: Path, *, checksum: str | None = None, readiness: Readiness | None = None, limits: ArchiveLimits | None = None
) -> Fetcher:
    return Fetcher(cache, readiness or Readiness(), checksum=checksum, limits=limits, pause_s=lambda attempt: 0.0)


def left_behind(cache: Path) -> list[Path]:
    return list(cache.glob(f"{PARTIAL_PREFIX}*"))


def test_a_directory_is_used_where_it_is(tmp_path: Path) -> None:
    model = tmp_path / "cat"
    model.mkdir()

    for uri in (str(model), f"file://{model}"):
        files = fetcher(tmp_path / "cache").fetch(uri)
        assert (files.directory, files.stem, files.file) == (model, "cat", None)


def test_a_file_is_used_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "cat v1.pt2").write_bytes(b"x")

    files = fetcher(tmp_path / "cache").fetch(f"file://{tmp_path}/cat%20v1.pt2")

    assert (files.directory, files.stem, files.file) == (tmp_path, "cat v1", "cat v1.pt2")


def test_a_local_file_s_checksum_is_verified(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(CONTENT)

    assert fetcher(tmp_path, checksum=f"sha256:{DIGEST.upper()}").fetch(str(path)).file == "m.pt2"
    with pytest.raises(LoadError, match=rf"has sha256:{DIGEST}, but .* is sha256:000"):
        fetcher(tmp_path, checksum="sha256:" + "0" * 64).fetch(str(path))


SUM_OF_FOLDER = r"find -L . -type f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum"


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_the_checksum_of_a_folder_that_lies_here_is_that_of_its_list_of_sums(tmp_path: Path, form: str) -> None:
    model, beside = tmp_path / "model", tmp_path / "beside"
    for name, content in (("model/b.txt", b"1"), ("model/a/c", CONTENT), ("model/a.b", b""), ("beside/d", b"4")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (model / "linked").symlink_to(beside)
    (model / os.fsdecode(b"\xe9.txt")).write_bytes(b"3")
    os.mkfifo(model / "pipe")
    output = subprocess.run(SUM_OF_FOLDER, shell=True, cwd=model, capture_output=True, text=True, check=True).stdout
    checksum = f"sha256:{output.split()[0]}"

    assert fetcher(tmp_path, checksum=checksum).fetch(form.format(model)).directory == model
    with pytest.raises(LoadError, match="more than 4 files"):
        fetcher(tmp_path, checksum=checksum, limits=ArchiveLimits(max_files=4)).fetch(str(model))
    (beside / "d").write_bytes(b"5")
    with pytest.raises(LoadError, match=r"model.checksum \(SHOAL_MODEL_CHECKSUM\) is sha256:"):
        fetcher(tmp_path, checksum=checksum).fetch(form.format(model))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("/no/such/model", "/no/such/model does not exist$"),
        ("file:///models/missing", "/models/missing does not exist.*`shoal local up --model missing=DIR`"),
        ("file://elsewhere/etc", "file://elsewhere/etc names a file of another machine: write file:///PATH"),
        ("ftp://b/m", "ftp://b/m must begin with one of file://"),
        ("oci://registry/m:1", "oci://registry/m:1 is mounted by the operator"),
        ("pvc://claim/m", "pvc://claim/m is mounted by the operator"),
    ],
)
def test_what_is_not_there_is_named(tmp_path: Path, uri: str, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        fetcher(tmp_path).fetch(uri)


def test_a_local_archive_is_unpacked_into_the_cache(tmp_path: Path) -> None:
    path = tar(tmp_path / "cat.tar.gz", {"cat/handler.py": b"a"})
    cache = tmp_path / "cache"

    first = fetcher(cache).fetch(str(path))
    second = fetcher(cache).fetch(str(path))

    assert first == second
    assert first.stem == "cat"
    assert (first.directory / "handler.py").read_bytes() == b"a"
    assert left_behind(cache) == []


def test_a_download_lands_whole_under_its_own_name(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT, None)]
    readiness = Readiness()

    files = fetcher(tmp_path, readiness=readiness).fetch(f"{site.url}/models/cat.pt2?token=secret")

    assert (files.stem, files.file) == ("cat", "cat.pt2")
    assert (files.directory / "cat.pt2").read_bytes() == CONTENT
    assert files.directory.name == DIGEST
    assert left_behind(tmp_path) == []
    assert readiness.reason == "unpacking"


def test_a_model_with_a_checksum_is_downloaded_once(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT, None)]

    for _ in range(2):
        fetcher(tmp_path, checksum=f"sha256:{DIGEST}").fetch(f"{site.url}/cat.pt2")

    assert site.asked == ["/cat.pt2"]


def test_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT, None)]

    with pytest.raises(LoadError, match=f"cat.pt2 has sha256:{DIGEST}"):
        fetcher(tmp_path, checksum="sha256:" + "0" * 64).fetch(f"{site.url}/cat.pt2")

    assert list(tmp_path.iterdir()) == []


def test_a_broken_connection_is_tried_again(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT[:5000], len(CONTENT)), (503, b"", None), (200, CONTENT, None)]

    files = fetcher(tmp_path).fetch(f"{site.url}/cat.pt2")

    assert (files.directory / "cat.pt2").read_bytes() == CONTENT
    assert len(site.asked) == 3


def test_a_partial_download_never_counts_as_a_model(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT[:5000], len(CONTENT))] * 3

    with pytest.raises(LoadError, match=r"cat\.pt2 cannot be downloaded: RemoteProtocolError"):
        fetcher(tmp_path).fetch(f"{site.url}/cat.pt2")

    assert list(tmp_path.iterdir()) == []


def test_a_rejection_is_final_and_reveals_no_secret(tmp_path: Path, site: Site) -> None:
    site.answers = [(403, b"", None)]

    with pytest.raises(LoadError) as caught:
        fetcher(tmp_path).fetch(f"{site.url}/cat.pt2?token=secret")

    assert str(caught.value) == f"{site.url}/cat.pt2 cannot be downloaded: the server returned 403"
    assert len(site.asked) == 1


def test_a_downloaded_archive_is_unpacked(tmp_path: Path, site: Site) -> None:
    archive = tar(tmp_path / "a.tar.gz", {"handler.py": b"a"})
    site.answers = [(200, archive.read_bytes(), None)]

    files = fetcher(tmp_path / "cache").fetch(f"{site.url}/cat.tar.gz")

    assert files.stem == "cat"
    assert (files.directory / "handler.py").read_bytes() == b"a"


def test_two_processes_may_fetch_the_same_model(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT, None)] * 2
    fetched: list[Path] = []

    def fetch() -> None:
        fetched.append(fetcher(tmp_path).fetch(f"{site.url}/cat.pt2").directory)

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert fetched == [tmp_path / DIGEST] * 2
    assert left_behind(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, site: Site) -> None:
    (tmp_path / "file").write_bytes(b"")
    site.answers = [(200, CONTENT, None)]

    with pytest.raises(LoadError, match="SHOAL_MODEL_CACHE_DIR cannot be written"):
        fetcher(tmp_path / "file").fetch(f"{site.url}/cat.pt2")


def test_what_killed_processes_left_is_swept_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / f"{PARTIAL_PREFIX}old", tmp_path / f"{PARTIAL_PREFIX}new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "download").write_bytes(b"x")
    then_s = new.stat().st_mtime - STALE_AFTER_S - 60
    os.utime(old, (then_s, then_s))

    remove_stale(tmp_path)

    assert left_behind(tmp_path) == [new]


def test_a_directory_without_a_writer_is_swept_at_once(tmp_path: Path) -> None:
    """A crash loop would else leave a copy each time, until the disk is full."""
    held, left = tmp_path / f"{PARTIAL_PREFIX}held", tmp_path / f"{PARTIAL_PREFIX}left"
    for folder in (held, left):
        folder.mkdir()
        then_s = folder.stat().st_mtime - UNLOCKED_AFTER_S - 60
        os.utime(folder, (then_s, then_s))
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    remove_stale(tmp_path)

    assert left_behind(tmp_path) == [held]
    os.close(descriptor)


@pytest.mark.parametrize("claimed", [True, False])
def test_a_download_over_the_limit_is_stopped_and_removed(tmp_path: Path, site: Site, *, claimed: bool) -> None:
    site.answers = [(200, CONTENT, None if claimed else -1)]
    site.tells_length = claimed

    with pytest.raises(LoadError, match=r"the download exceeds 1000 bytes \(SHOAL_MODEL_MAX_BYTES\)"):
        fetcher(tmp_path, limits=ArchiveLimits(max_bytes=1000)).fetch(f"{site.url}/cat.pt2")

    assert list(tmp_path.iterdir()) == []


def test_a_server_that_drips_is_abandoned(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT, None)]
    site.drips = threading.Event()

    with pytest.raises(LoadError, match=r"longer than 0\.2 s \(SHOAL_MODEL_FETCH_TIMEOUT_S\)"):
        fetcher(tmp_path, limits=ArchiveLimits(timeout_s=0.2)).fetch(f"{site.url}/cat.pt2")

    site.drips.set()
    assert list(tmp_path.iterdir()) == []


def test_a_local_file_is_checked_within_the_time_too(tmp_path: Path) -> None:
    (tmp_path / "m.pt2").write_bytes(CONTENT)

    with pytest.raises(LoadError, match="SHOAL_MODEL_FETCH_TIMEOUT_S"):
        fetcher(tmp_path, checksum=f"sha256:{DIGEST}", limits=ArchiveLimits(timeout_s=0.0)).fetch(
            str(tmp_path / "m.pt2")
        )


def test_an_archive_that_takes_too_much_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tar(tmp_path / "cat.tar.gz", {"a": bytes(5000), "b": bytes(5000)})

    with pytest.raises(LoadError, match="SHOAL_MODEL_MAX_BYTES"):
        fetcher(tmp_path / "cache", limits=ArchiveLimits(max_bytes=4000)).fetch(str(path))

    assert list((tmp_path / "cache").iterdir()) == []


def test_no_server_redirects_a_secure_download_on_to_an_insecure_server() -> None:
    (check,) = reject_insecure_redirects("https://host/cat.pt2?token=secret")["request"]

    check(httpx.Request("GET", "https://other/cat.pt2"))
    with pytest.raises(LoadError, match=r"^https://host/cat\.pt2 cannot be downloaded: the server redirects to http$"):
        check(httpx.Request("GET", "http://other/cat.pt2"))


def test_what_another_process_removes_meanwhile_stops_no_sweep(tmp_path: Path) -> None:
    (tmp_path / f"{PARTIAL_PREFIX}gone").symlink_to("nowhere")  # listed, and not there when it is looked at

    remove_stale(tmp_path)


def test_a_download_is_requested_again_only_if_it_has_changed(tmp_path: Path, site: Site) -> None:
    site.etag = '"one"'
    site.answers = [(200, CONTENT, None), (304, b"", None)]
    first = fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    second = fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    assert second == first
    assert site.conditions == [None, '"one"']


def test_a_changed_file_replaces_the_old_one(tmp_path: Path, site: Site) -> None:
    site.etag = '"one"'
    site.answers = [(200, CONTENT, None), (200, b"new", None), (304, b"", None)]
    fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    second = fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    third = fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    assert (second.directory / "model.pt2").read_bytes() == b"new"
    assert third == second


def test_when_the_server_is_unavailable_the_last_download_serves(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT, None), (503, b"", None), (503, b"", None), (503, b"", None)]
    first = fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    assert fetcher(tmp_path).fetch(f"{site.url}/model.pt2") == first


def test_a_cache_that_has_lost_the_file_sends_no_condition(tmp_path: Path, site: Site) -> None:
    site.etag = '"one"'
    site.answers = [(200, CONTENT, None), (200, CONTENT, None)]
    first = fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    (first.directory / "model.pt2").unlink()
    first.directory.rmdir()
    assert fetcher(tmp_path).fetch(f"{site.url}/model.pt2") == first
    assert site.conditions == [None, None]


def test_what_was_noted_badly_is_as_good_as_nothing(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT, None), (200, CONTENT, None)]
    fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    for note in (tmp_path / "origins").iterdir():
        note.write_bytes(b"[1, 2")
    fetcher(tmp_path).fetch(f"{site.url}/model.pt2")
    assert site.conditions == [None, None]


def test_what_an_init_container_has_fetched_is_used_without_a_request(tmp_path: Path, site: Site) -> None:
    site.answers = [(200, CONTENT, None)]
    uri = f"{site.url}/model.pt2"
    first = fetcher(tmp_path).fetch(uri)

    assert Fetcher(tmp_path, Readiness(), fetched=True).fetch(uri) == first
    assert len(site.asked) == 1
    site.answers = [(200, CONTENT, None)]
    with pytest.raises(LoadError, match="sha256"):  # another file is wanted than was fetched
        Fetcher(tmp_path, Readiness(), fetched=True, checksum="sha256:" + "0" * 64).fetch(uri)
