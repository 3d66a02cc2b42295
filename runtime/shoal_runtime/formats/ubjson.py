"""Decoder for the subset of UBJSON that xgboost writes: objects, texts, numbers and numeric arrays."""

import struct
from typing import Any, Final

import numpy as np

_NUMBERS: Final = {"U": ">u1", "i": ">i1", "I": ">i2", "l": ">i4", "L": ">i8", "d": ">f4", "D": ">f8"}
_CONSTANTS: Final = {"Z": None, "T": True, "F": False}


def decode(data: bytes) -> Any:
    """Decode a UBJSON document; an array of one numeric type becomes a numpy array.

    Raises:
        ValueError: an unsupported type, a repeated name, a truncated document, or bytes after its end.
    """
    reader = _Reader(data)
    try:
        value = reader.value()
    except (struct.error, IndexError, RecursionError):
        raise ValueError("it is truncated, or nested too deeply") from None
    # Bytes after the document mean a damaged file.
    if reader.at != len(data):
        raise ValueError("it continues after its end")
    return value


class _Reader:
    """Cursor over a UBJSON document; `value` decodes the next value."""

    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data

    def value(self) -> Any:
        kind = self._take(1)
        if kind == "{":
            held: dict[str, Any] = {}
            while self._peek() != "}":
                name = self._text()
                if name in held:
                    raise ValueError(f"{name} is repeated")
                held[name] = self.value()
            self.at += 1
            return held
        if kind == "[":
            # An array of one type: "$", the type, "#", the length, then the numbers.
            if self._peek() == "$":
                self.at += 1
                element = self._take(1)
                self._expect("#")
                return self._numbers(element, self._length())
            # An array of known length without an end mark.
            if self._peek() == "#":
                self.at += 1
                return [self.value() for _ in range(self._length())]
            values = []
            while self._peek() != "]":
                values.append(self.value())
            self.at += 1
            return values
        if kind == "S":
            return self._text()
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        return self._numbers(kind, 1)[0].item()

    def _numbers(self, kind: str, count: int) -> Any:
        # All numbers are big-endian.
        if kind not in _NUMBERS:
            raise ValueError(f"{kind!r} is not a type of value in xgboost's files")
        dtype = np.dtype(_NUMBERS[kind])
        self._require(count * dtype.itemsize)
        self.at += count * dtype.itemsize
        return np.frombuffer(self._data, dtype, count, self.at - count * dtype.itemsize)

    def _text(self) -> str:
        return self._take(self._length())

    def _length(self) -> int:
        self._expect("L")
        length: int = self._numbers("L", 1)[0].item()
        self._require(length)
        return length

    def _require(self, count: int) -> None:
        if not 0 <= count <= len(self._data) - self.at:
            raise ValueError("it is truncated")

    def _expect(self, mark: str) -> None:
        if self._take(1) != mark:
            raise ValueError(f"{mark!r} is missing")

    def _peek(self) -> str:
        return chr(self._data[self.at])

    def _take(self, count: int) -> str:
        self._require(count)
        self.at += count
        return self._data[self.at - count : self.at].decode()
