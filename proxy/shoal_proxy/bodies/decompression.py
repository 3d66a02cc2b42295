"""Decompression of request bodies in steps between other work."""

from typing import Final, Protocol

from shoal_proxy.bodies.decompressor import BodyDecompressor
from shoal_proxy.bodies.rotation import Rotation
from shoal_proxy.errors import InvalidRequest, ProxyError

_STEP_COST_BYTES: Final = 4096
"""The fixed cost of a step, in bytes."""


class BodyOwner(Protocol):
    """The request that a compressed body belongs to."""

    def count_decompressed(self, read_bytes: int, made_bytes: int) -> bool:
        """Count the bytes that one step has read and written.

        Returns: False if the request is rejected.
        """

    def body_decompressed(self) -> None:
        """Continue the request with the body from `CompressedBody.take`."""

    def stop(self, error: ProxyError) -> None:
        """Reject the request."""


class CompressedBody:
    """The compressed body of one request, decompressed while it arrives."""

    __slots__ = ("_complete", "_owner", "_packed", "_plain", "_rotation", "scheduled")

    def __init__(self, coding: bytes, owner: BodyOwner, rotation: Rotation) -> None:
        self._packed: BodyDecompressor | None = BodyDecompressor(coding)
        self._owner = owner
        self._rotation = rotation
        self._complete = False
        self._plain: bytes | memoryview | None = None
        self.scheduled = False

    @property
    def ready(self) -> bool:
        """Return whether the whole body is decompressed."""
        return self._plain is not None

    def add(self, chunk: bytes) -> None:
        """Append compressed bytes."""
        if self._packed is not None:
            self._packed.add(chunk)
        self._rotation.schedule(self)

    def end(self) -> None:
        """Record that the compressed body is complete."""
        self._complete = True
        self._rotation.schedule(self)

    def take(self) -> bytes | memoryview:
        """Return the decompressed body and drop the reference to it."""
        plain, self._plain = self._plain, None
        assert plain is not None
        return plain

    def drop(self) -> None:
        """Drop the body and free its memory."""
        self._packed = self._plain = None

    def step(self) -> int:
        """Decompress a part of the body; return the cost in bytes."""
        packed, read_bytes, made_bytes = self._packed, 0, 0
        if packed is None:
            return 0
        try:
            if packed.waiting:
                read_bytes, made_bytes = packed.step()
            if not self._owner.count_decompressed(read_bytes, made_bytes):
                return made_bytes
            if packed.waiting:
                self._rotation.schedule(self)
            elif self._complete:
                self._plain = packed.take()
                self._owner.body_decompressed()
        except InvalidRequest as error:
            self._owner.stop(error)
        return read_bytes + made_bytes + _STEP_COST_BYTES
