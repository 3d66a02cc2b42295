import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.serve import echo_server
from benchmarks.wrk import HOW_TO_INSTALL, Load, Measurement, Wrk, WrkError, find_wrk, parse

TOOLS = Path(__file__).parents[2] / ".tools"


@contextmanager
def collecting_server() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Answer each request with nothing; yield the URL, and the ids and bodies so far."""
    bodies: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            ids = self.headers["x-request-id"] + self.headers["traceparent"]
            bodies.append((ids, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", bodies
        server.shutdown()
        thread.join()


REPORT = """\
Running 2s test @ http://127.0.0.1:8080/v2/models/mlp/infer
  1 threads and 64 connections
Requests/sec:   3892.10
"""
LINE = '{"requests": 8000, "duration_us": 2000000, "p50_us": 16100, "p99_us": 28300, "failures": 0}'


def test_the_last_line_of_json_is_the_measurement() -> None:
    assert parse(f"{REPORT}{LINE}\n") == Measurement(8000, 4000.0, 16.1, 28.3)


@pytest.mark.parametrize("output", ["", REPORT])
def test_output_without_a_measurement_is_an_error(output: str) -> None:
    with pytest.raises(WrkError, match="no measurement"):
        parse(output)


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace('"failures": 0', '"failures": 3'),
        LINE.replace('"requests": 8000', '"requests": 0'),
    ],
)
def test_figures_of_failed_requests_are_no_figures(line: str) -> None:
    with pytest.raises(WrkError, match=r"\d requests failed"):
        parse(line)


def test_a_wrk_that_was_unpacked_is_used_with_its_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    command = tmp_path / "wrk/usr/bin/wrk"
    library = tmp_path / "wrk/usr/lib/x86_64-linux-gnu/libluajit-5.1.so.2"
    for file in (command, library):
        file.parent.mkdir(parents=True)
        file.touch()

    assert find_wrk(tmp_path) == Wrk(str(command), str(library.parent))


def test_without_wrk_and_apt_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(WrkError) as failure:
        find_wrk(tmp_path)

    assert HOW_TO_INSTALL in str(failure.value)


@pytest.mark.integration
def test_it_loads_a_real_server() -> None:
    if shutil.which("wrk") is None and not (TOOLS / "wrk/usr/bin/wrk").is_file():
        pytest.skip("no wrk on PATH, and python -m benchmarks.serve has not fetched it yet")

    with echo_server() as (url, _):
        measured = find_wrk(TOOLS).run(Load(url, b"x" * 100, connections=2, duration_s=1))

    assert measured.requests > 10
    assert 0 < measured.p50_ms <= measured.p99_ms


@pytest.mark.integration
@pytest.mark.parametrize("padding", [b"", b" " * 100_000], ids=["small", "large"])
def test_bodies_are_sent_in_turn_each_with_ids_of_its_own(padding: bytes) -> None:
    if shutil.which("wrk") is None and not (TOOLS / "wrk/usr/bin/wrk").is_file():
        pytest.skip("no wrk on PATH, and python -m benchmarks.serve has not fetched it yet")

    first, *more = (kind + padding for kind in (b"first", b"second", b"third"))
    with collecting_server() as (url, seen):
        load = Load(url, first, connections=1, duration_s=1, headers={"x-kind": "a"}, more_bodies=more)
        find_wrk(TOOLS).run(load)

    bodies = [body for _, body in seen]
    # wrk asks its script for one request before it starts.
    assert set(bodies) == {first, *more}
    assert bodies[3:] == bodies[:-3]
    assert len({ids for ids, _ in seen[:16]}) == 16
