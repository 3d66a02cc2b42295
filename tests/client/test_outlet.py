"""Output to a pipe that is read late, or never."""

import os
import threading
from collections.abc import Iterator

import pytest

from shoal.outlet import Outlet

LINE = b"x" * 1023 + b"\n"
PIPE_LINES = 64  # 64 KiB: what Linux keeps in a pipe
TIMEOUT_S = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    # A blocked writer ends when the reader's end is closed, which each test does.
    for thread in threading.enumerate():
        if thread.name == f"output {writer}":
            thread.join(TIMEOUT_S)
    os.close(writer)


def read_all(reader: int, until: bytes) -> bytes:
    text = b""
    while until not in text:
        text += os.read(reader, 65536)
    return text


def test_what_is_read_comes_whole_and_in_order(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = Outlet(writer)
    for number in range(1000):
        outlet.write(b"%d\n" % number)
    outlet.write(b"end\n")

    text = read_all(reader, b"end\n")

    os.close(reader)
    outlet.close(TIMEOUT_S)
    assert text == b"".join(b"%d\n" % number for number in range(1000)) + b"end\n"


def test_what_does_not_fit_is_dropped_and_counted_once_there_is_room(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = Outlet(writer, held_bytes=8 * len(LINE))
    for _ in range(PIPE_LINES + 100):
        outlet.write(LINE)  # returns, although the pipe is not read

    first = os.read(reader, 65536)
    outlet.drain(0.0)
    text = first + read_all(reader, b"dropped here")

    os.close(reader)
    outlet.close(TIMEOUT_S)
    kept = text.count(LINE)
    assert 8 <= kept <= PIPE_LINES + 8
    assert f"shoal: {PIPE_LINES + 100 - kept} lines of output were dropped here" in text.decode()


def test_closing_waits_no_longer_than_it_may(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = Outlet(writer)
    outlet.write(LINE * 2 * PIPE_LINES)

    outlet.close(0.0)

    os.close(reader)


def test_a_reader_that_left_is_no_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    os.close(reader)
    outlet = Outlet(writer)

    outlet.write(LINE)
    outlet.drain(TIMEOUT_S)
    outlet.write(LINE)

    outlet.close(TIMEOUT_S)
