"""A store in a directory that contains entries of other programs."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.asynchronous.records import encode_request
from shoal_proxy.asynchronous.stored_files import list_files
from tests import plain
from tests.calls import row, v2_body
from tests.proxy.asynchronous.requests import doubled, outputs, requests_of, result
from tests.proxy.asynchronous.test_store import recovery_of, stored_proxy, until_accepting


def loop(place: Path) -> None:
    (place / "loop").symlink_to("loop")


def loop_of_directories(place: Path) -> None:
    (place / "again").symlink_to(".")


def dangling_link(place: Path) -> None:
    (place / "nowhere").symlink_to("missing")


def name_in_latin_1(place: Path) -> None:
    Path(os.fsdecode(os.fsencode(place) + b"/\xe9t\xe9")).write_bytes(b"")


def directory_in_latin_1(place: Path) -> None:
    made = Path(os.fsdecode(os.fsencode(place) + b"/\xe9t\xe9"))
    made.mkdir()
    (made / "x").write_bytes(b"")


def name_of_two_lines(place: Path) -> None:
    (place / "a\nb").write_bytes(b"")


def pipe(place: Path) -> None:
    os.mkfifo(place / "pipe")


FOREIGN = (loop, loop_of_directories, dangling_link, name_in_latin_1, directory_in_latin_1, name_of_two_lines, pipe)


@pytest.mark.parametrize("make", FOREIGN)
def test_entries_that_the_store_has_not_made_are_skipped_and_logged_once(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "model-double"
    request = JobRequest("v2", {b"content-type": b"application/json"}, orjson.dumps(v2_body([row(7.0)])))
    job = Job("", request, rows=1, accepted_s=0.0, deadline_s=1e9)
    for kind in ("requests", "started", "results", "processes", f"requests/{'e' * 32}", f"started/{'e' * 32}"):
        (place / kind).mkdir(parents=True)
        make(place / kind)
    (place / "requests" / ("e" * 32) / "gone.1").write_bytes(encode_request(job, time.time()))  # noqa: TID251
    with stored_proxy(tmp_path) as running:
        until_accepting(running)
        for _ in range(2):
            running.call(recovery_of(running).continue_requests, time.monotonic())
            running.call(recovery_of(running).sweep)
        assert outputs(result(running.url, f"/v2/models/double/results/{'e' * 32}")) == doubled(7.0)
        running.until(lambda: requests_of(running).settled)
        assert plain.delete(f"{running.url}/v2/models/double/results/{'e' * 32}").status_code == 204
    messages = [record.getMessage() for record in caplog.records]
    skipped = [message for message in messages if "event=store_entries_skipped" in message]
    assert sum(int(message.split(" count=")[1].split()[0]) for message in skipped) == 6
    assert not [message for message in messages if "event=store_unavailable" in message]


def test_files_that_obstore_is_writing_are_no_objects(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/x", "a/x#1", "a/y#z", "z"):
        (tmp_path / name).write_bytes(b"")

    found = list_files(tmp_path)

    assert (sorted(each.name for each in found.files), found.skipped) == (["a/x", "a/y#z", "z"], frozenset())
    assert list_files(tmp_path / "missing").files == []
    with pytest.raises(NotADirectoryError):
        list_files(tmp_path / "z")


def test_each_write_changes_the_version_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "lease").write_bytes(b"a")
    before = list_files(tmp_path).files
    (tmp_path / "new").write_bytes(b"b")
    (tmp_path / "new").replace(tmp_path / "lease")

    assert before != list_files(tmp_path).files
