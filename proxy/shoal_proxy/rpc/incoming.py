"""Memory limit of incomplete gRPC messages, shared with HTTP bodies.

gRPC's core reports a message only when it is complete. So the size of a connection's incomplete messages is estimated:
the bytes that the connection has received, less the bytes of its complete messages. A message that arrives entirely
between two checks is not counted.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

from shoal_proxy.bodies.body_memory import DelegatedTransfer
from shoal_proxy.errors import Overloaded
from shoal_proxy.http.inference import Inference
from shoal_proxy.rpc.slow_calls import connections_of, received_on, shut_down
from shoal_schema.process.memory import return_freed_memory

CHECK_S: Final = 0.25
_TRIM_BYTES: Final = 64 << 20
"""After so many bytes were counted and dropped, free memory is returned to the kernel."""


class _Sender:
    """A connection with incomplete gRPC messages."""

    __slots__ = ("body", "checked", "complete_bytes", "connection", "peer", "reading", "received_bytes")

    def __init__(self, peer: str, expected_bytes: int) -> None:
        self.peer = peer
        self.body = DelegatedTransfer(self.evict)
        self.body.expected_bytes = expected_bytes
        self.connection: socket.socket | None = None
        """A duplicate, while messages are incomplete; None before the first check."""
        self.reading = 0
        """Messages that are being received."""
        self.complete_bytes = 0
        """Bytes of messages that were completed since the last check."""
        self.received_bytes = 0
        """All bytes that the connection had received at the last check."""
        self.checked = False

    def evict(self) -> None:
        """Close the connection, which ends all its calls."""
        if self.connection is not None:
            shut_down(self.connection)

    def close(self) -> None:
        """Close the duplicate of the connection's socket."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None


class IncomingMessages:
    """The incomplete gRPC messages of one port.

    Args:
        inference: accounts for the bytes.
        max_message_bytes: size of the largest allowed message.
    """

    def __init__(self, inference: Inference, max_message_bytes: int) -> None:
        self._inference = inference
        self._max_message_bytes = max_message_bytes
        self._senders: dict[str, _Sender] = {}
        self._task: asyncio.Task[None] | None = None
        self.port = 0
        self._peak_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all incomplete messages, as counted last."""
        return sum(each.body.held_bytes for each in self._senders.values())

    async def read(self, requests: AsyncIterator[Any], context: Any) -> Any:
        """Return a call's next message; None at the end of the call."""
        peer = context.peer()
        sender = self._senders.get(peer)
        if sender is None:
            sender = self._senders[peer] = _Sender(peer, self._max_message_bytes)
        sender.reading += 1
        if self._task is None:
            self._task = asyncio.create_task(self._check())
        message = None
        try:
            message = await anext(requests, None)
        finally:
            sender.reading -= 1
            if message is not None:
                sender.complete_bytes += len(message) if isinstance(message, bytes) else message.ByteSize()
            if not sender.reading:
                del self._senders[sender.peer]
                self._set_held_bytes(sender, 0)
                sender.close()
        return message

    async def messages(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Yield the messages of a call."""
        while (message := await self.read(requests, context)) is not None:
            yield message

    async def _check(self) -> None:
        """Measure incomplete messages periodically, until there are none."""
        while self._senders or self._peak_bytes > _TRIM_BYTES:
            await asyncio.sleep(CHECK_S)
            # Most messages are complete at the next check.
            senders = [each for each in self._senders.values() if each.checked]
            for each in self._senders.values():
                each.checked = True
            if unknown := {each.peer for each in senders if each.connection is None}:
                for peer, connection in (await asyncio.to_thread(connections_of, unknown, self.port)).items():
                    found = self._senders.get(peer)
                    if found is None or found.connection is not None:
                        connection.close()
                    else:
                        found.connection = connection
            for each in senders:
                # It may have been evicted or dropped in the meantime.
                if each.reading and each.connection is not None:
                    received_bytes = received_on(each.connection)
                    more_bytes = received_bytes - each.received_bytes - each.complete_bytes
                    each.received_bytes, each.complete_bytes = received_bytes, 0
                    most_bytes = each.reading * self._max_message_bytes
                    self._set_held_bytes(each, min(most_bytes, max(0, each.body.held_bytes + more_bytes)))
            size_bytes = self.size_bytes
            self._peak_bytes = max(self._peak_bytes, size_bytes)
            if self._peak_bytes > _TRIM_BYTES and size_bytes < self._peak_bytes // 4:
                self._peak_bytes = size_bytes
                await asyncio.to_thread(return_freed_memory)
        self._task = None

    def _set_held_bytes(self, sender: _Sender, held_bytes: int) -> None:
        before_bytes = sender.body.held_bytes
        if held_bytes > before_bytes:
            sender.body.expected_bytes = max(1, sender.reading) * self._max_message_bytes
            try:
                self._inference.reserve_body(sender.body, held_bytes - before_bytes)
            except Overloaded:
                self._inference.bodies.release(sender.body)
                sender.evict()
        elif held_bytes:
            self._inference.bodies.shrink(sender.body, before_bytes - held_bytes)
        elif before_bytes:
            self._inference.bodies.release(sender.body)
