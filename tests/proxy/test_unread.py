"""What clients have not read: given a piece at a time, counted, and whose connection ends when it is too much."""

import asyncio
import socket
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import uvloop

from shoal_proxy.dispatch.unread import CHECK_S, WINDOW_S, ReadingPace, UnreadResponses
from shoal_proxy.http.outbox import PIECE_BYTES, Outbox, pinned_bytes


class Wire(asyncio.Transport):
    """A transport that takes one piece, and more when its client reads."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox(self)
        self.kept = b""
        self.read = b""
        self.ended = self.closed = False

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        assert (self.kept, self.closed) == (b"", False), "more than it takes"
        self.kept = b"".join(list_of_data)
        self.outbox.blocked = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return len(self.kept)

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def client_reads(self) -> None:
        self.read, self.kept = self.read + self.kept, b""
        self.outbox.blocked = False
        self.outbox.feed()


def content(size_bytes: int) -> bytes:
    return np.random.default_rng(0).bytes(size_bytes)


def test_pieces_come_in_order_and_what_is_left_is_known() -> None:
    wire, whole = Wire(), content(3 * PIECE_BYTES + 5)
    wire.outbox.writelines([b"head", b"", whole, b"tail"])
    assert len(wire.kept) == PIECE_BYTES
    assert wire.outbox.get_write_buffer_size() == len(whole) + 8
    wire.outbox.write(b"next")
    while wire.kept:
        wire.client_reads()
    assert wire.read == b"head" + whole + b"tailnext"
    assert (wire.outbox.unread_bytes, wire.outbox.held_bytes) == (0, 0)


def test_a_connection_ends_behind_the_last_piece() -> None:
    wire, whole = Wire(), content(2 * PIECE_BYTES)
    wire.outbox.writelines([whole])
    wire.outbox.write_eof()
    wire.outbox.close()
    assert (wire.outbox.is_closing(), wire.closed, wire.ended) == (True, False, False)
    wire.client_reads()
    assert (wire.kept, wire.closed) == (whole[PIECE_BYTES:], True)


def test_an_aborted_connection_keeps_nothing() -> None:
    wire = Wire()
    wire.outbox.writelines([content(3 * PIECE_BYTES)])
    wire.outbox.abort()
    assert (wire.closed, wire.outbox.unread_bytes) == (True, 0)


def test_a_row_does_not_keep_the_other_rows_of_its_batch() -> None:
    batch = np.frombuffer(memoryview(content(8 * PIECE_BYTES)), np.uint8).reshape(4, -1)
    row, whole = batch[1].view(np.uint8).data, batch[1].tobytes()
    assert pinned_bytes(row) == 8 * PIECE_BYTES
    wire, kept = Wire(), weakref.ref(batch)
    wire.outbox.writelines([b"head", row])
    del batch, row
    wire.outbox.own()
    assert kept() is None
    assert wire.outbox.unread_bytes == len(whole) + 4 - PIECE_BYTES
    while wire.kept:
        wire.client_reads()
    assert wire.read == b"head" + whole


class Sender(asyncio.Protocol):
    """A protocol that feeds its outbox, as a connection does."""

    def connection_made(self, transport: Any) -> None:
        self.outbox = Outbox(transport)
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def pause_writing(self) -> None:
        self.outbox.blocked = True

    def resume_writing(self) -> None:
        self.outbox.blocked = False
        self.outbox.feed()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("parts", [1, 5])
def test_a_client_that_reads_nothing_keeps_no_batch(
    new_loop: Callable[[], asyncio.AbstractEventLoop], parts: int
) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        _, sender = await loop.create_unix_connection(Sender, sock=ours)
        try:
            buffer = np.random.default_rng(0).integers(0, 256, 16 * PIECE_BYTES, np.uint8)
            kept, row = weakref.ref(buffer), buffer[8 * PIECE_BYTES :].data
            whole, step = row.tobytes(), 8 * PIECE_BYTES // parts
            sender.outbox.writelines([b"head", *(row[at : at + step] for at in range(0, len(row), step))])
            assert sender.outbox.blocked
            sender.outbox.own()
            del buffer, row
            assert kept() is None
            assert sender.outbox.held_bytes <= len(whole) + PIECE_BYTES
            sender.outbox.write(b"tail")
            sender.outbox.close()
            read = b""
            async with asyncio.timeout(20):
                while more := await loop.sock_recv(theirs, 100_000):
                    read += more
            assert read == b"head" + whole + b"tail"
        finally:
            theirs.close()
            if not sender.lost.is_set():  # uvloop's loop does not close with an unfinished write
                sender.outbox.abort()
            await sender.lost.wait()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


def test_an_error_of_the_kernel_ends_the_connection() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        _, sender = await asyncio.get_running_loop().create_unix_connection(Sender, sock=ours)
        theirs.close()
        sender.outbox.writelines([content(3 * PIECE_BYTES)])
        async with asyncio.timeout(20):
            await sender.lost.wait()

    asyncio.run(scenario())


def test_what_is_no_part_is_not_copied() -> None:
    assert pinned_bytes(memoryview(b"123")[1:2]) == 3
    assert pinned_bytes(np.zeros(3, np.uint8).data) == 3


class Client:
    """A connection whose client has not read all."""

    def __init__(self, unsent: UnreadResponses, left_bytes: int) -> None:
        self.unread_bytes = left_bytes
        self.gone = False
        self.unsent = unsent
        unsent.set_held_bytes(self, left_bytes)

    def evict(self) -> None:
        self.gone = True


def test_a_pace_is_that_of_the_last_window() -> None:
    pace = ReadingPace()
    pace.measure(1000, 5.0)
    assert pace.needs_s(1000) == 0.0  # not slow yet
    pace.measure(900, 5.0 + WINDOW_S)
    assert pace.needs_s(900) == pytest.approx(9 * WINDOW_S)
    pace.measure(900, 5.0 + 2 * WINDOW_S)
    assert pace.needs_s(900) == float("inf")


def test_room_is_released_when_a_client_has_read_or_gone() -> None:
    async def scenario() -> None:
        unsent, calls = UnreadResponses(100, 60.0), 0

        def on_room() -> None:
            nonlocal calls
            calls += 1

        unsent.on_room = on_room
        first, second = Client(unsent, 60), Client(unsent, 60)
        assert (unsent.full, unsent.size_bytes) == (True, 120)
        waiting = asyncio.create_task(unsent.wait_for_room())
        await asyncio.sleep(0)
        assert not waiting.done()
        unsent.set_held_bytes(first, 30)
        assert (unsent.full, unsent.size_bytes, calls) == (False, 90, 1)
        await waiting
        unsent.set_held_bytes(second, 0)
        unsent.set_held_bytes(second, 0)
        assert unsent.size_bytes == 30

    asyncio.run(scenario())


def test_the_slowest_give_way_until_there_is_room_and_those_with_little_never() -> None:
    async def scenario() -> None:
        unsent = UnreadResponses(1000, 2.0)
        deaf, slow, quick = Client(unsent, 500), Client(unsent, 500), Client(unsent, 500)
        little = Client(unsent, 100)
        room = asyncio.create_task(unsent.wait_for_room())
        async with asyncio.timeout(10):
            while not room.done():
                await asyncio.sleep(0.1)
                slow.unread_bytes = max(450, slow.unread_bytes - 1)
                quick.unread_bytes = max(1, quick.unread_bytes - 40)
        assert [each.gone for each in (deaf, slow, quick, little)] == [True, True, False, False]
        assert unsent.size_bytes == 600

    asyncio.run(scenario())


def test_at_the_limit_so_much_is_freed_that_the_next_responses_do_not_fill_it_at_once() -> None:
    async def scenario() -> None:
        unsent = UnreadResponses(1000, 2.0)
        deaf = [Client(unsent, 110) for _ in range(10)]
        async with asyncio.timeout(10):
            await unsent.wait_for_room()
        gone = [each.gone for each in deaf]
        assert gone == [True] * 6 + [False] * 4
        assert unsent.size_bytes == 440

    asyncio.run(scenario())


def test_paces_are_measured_before_the_limit_is_reached() -> None:
    async def scenario() -> None:
        unsent = UnreadResponses(1000, 2.0)
        deaf = Client(unsent, 600)
        loop = asyncio.get_running_loop()
        closed = loop.create_future()
        loop.call_later(WINDOW_S + 4 * CHECK_S, closed.set_result, None)
        await closed
        assert not deaf.gone
        began_s = loop.time()
        Client(unsent, 600)
        async with asyncio.timeout(10):
            await unsent.wait_for_room()
        assert deaf.gone
        assert loop.time() - began_s < WINDOW_S

    asyncio.run(scenario())
