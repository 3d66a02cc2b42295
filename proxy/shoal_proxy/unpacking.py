"""Compressed request bodies, unpacked beside other work."""

from typing import Final, Protocol

from shoal_proxy.edge.packed import Packed
from shoal_proxy.errors import InvalidRequest, ProxyError
from shoal_proxy.rotation import Rotation

_STEP_COST_BYTES: Final = 4096
"""What a step costs beside its bytes."""


class Owner(Protocol):
    """The request that a body belongs to."""

    def count_unpacked(self, read_bytes: int, made_bytes: int) -> bool:
        """Account for a step; return False where the request was refused for it."""

    def body_unpacked(self) -> None:
        """Continue with the body that `PackedBody.take` returns."""

    def stop(self, error: ProxyError) -> None:
        """Refuse the request."""


class PackedBody:
    """The body of one request; it is unpacked while it arrives."""

    __slots__ = ("_complete", "_owner", "_packed", "_plain", "_rotation", "scheduled")

    def __init__(self, coding: bytes, owner: Owner, rotation: Rotation) -> None:
        self._packed: Packed | None = Packed(coding)
        self._owner = owner
        self._rotation = rotation
        self._complete = False
        self._plain: bytes | memoryview | None = None
        self.scheduled = False

    @property
    def ready(self) -> bool:
        """Return whether the whole body is unpacked."""
        return self._plain is not None

    def add(self, chunk: bytes) -> None:
        """Append packed bytes."""
        if self._packed is not None:
            self._packed.add(chunk)
        self._rotation.schedule(self)

    def end(self) -> None:
        """Note that the last byte is here."""
        self._complete = True
        self._rotation.schedule(self)

    def take(self) -> bytes | memoryview:
        """Return the unpacked body, once."""
        plain, self._plain = self._plain, None
        assert plain is not None
        return plain

    def drop(self) -> None:
        """Give up the body and its memory."""
        self._packed = self._plain = None

    def step(self) -> int:
        """Unpack a part of it, unless it was given up; return what that cost, in bytes."""
        packed, read_bytes, made_bytes = self._packed, 0, 0
        if packed is None:
            return 0
        try:
            if packed.waiting:
                read_bytes, made_bytes = packed.step()
            if not self._owner.count_unpacked(read_bytes, made_bytes):
                return made_bytes
            if packed.waiting:
                self._rotation.schedule(self)
            elif self._complete:
                self._plain = packed.take()
                self._owner.body_unpacked()
        except InvalidRequest as error:
            self._owner.stop(error)
        return read_bytes + made_bytes + _STEP_COST_BYTES
