"""API keys: salted hashes of keys, and the names of their owners."""

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b, sha256
from typing import Final

MIN_CHARACTERS: Final = 16
"""Least length of a key: a shorter one can be guessed."""
MAX_CHARACTERS: Final = 4096
MAX_KEYS: Final = 10_000
_NAME: Final = re.compile(r"[-._A-Za-z0-9]{1,253}")
_NAMES: Final = "letters, digits, '.', '_' and '-'"
_KEY: Final = re.compile(rb"[\x21-\x7e]+")
_HASHED: Final = re.compile(rb"sha256:[0-9a-fA-F]{64}")


class ApiKeys:
    """An immutable set of API keys; a rotation creates a new object.

    A key is stored as a hash of its hash, under a ``salt`` that only this process has. A client cannot predict the
    compared hash, so the duration of a look-up reveals nothing about any key.

    Args:
        entries: keys by client name, one per line; ``sha256:`` and 64 hexadecimal digits denote a key with that hash.
        salt: random bytes, 16 to 64.
    """

    def __init__(self, entries: Mapping[str, bytes], salt: bytes) -> None:
        self._salt = salt
        self._names: dict[bytes, str] = {}
        self.faults: list[str] = []
        """Entries that were skipped and why, in words that hold no key."""
        for name, text in sorted(entries.items()):
            self._add(name, text)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the clients with a key."""
        return frozenset(self._names.values())

    def owner(self, presented: bytes) -> str | None:
        """Return the name of the client that a key belongs to; None if unknown."""
        # Long input is not hashed at all.
        return (
            None if len(presented) > MAX_CHARACTERS else self._names.get(self._salted_hash(sha256(presented).digest()))
        )

    def _salted_hash(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._salt, digest_size=32).digest()

    def _add(self, name: str, text: bytes) -> None:
        if not _NAME.fullmatch(name):
            self.faults.append(f"{name!r:.100} is not a valid key name: use {_NAMES}")
            return
        for line in text.splitlines():
            given = line.strip()
            if not given:
                continue
            fault = _key_fault(given)
            if not fault:
                hashed = given.startswith(b"sha256:")
                kept = self._salted_hash(bytes.fromhex(given[7:].decode()) if hashed else sha256(given).digest())
                other = self._names.get(kept, name)
                # The first name in alphabetical order owns a key that several names share.
                if other != name:
                    fault = f"is also a key of {other}, and identifies {other} only"
                elif len(self._names) >= MAX_KEYS:
                    fault = f"is beyond the first {MAX_KEYS}"
                else:
                    self._names[kept] = name
            if fault:
                self.faults.append(f"a key of {name} {fault}")
        if not text.strip():
            self.faults.append(f"{name} is empty")


def parse_key_file(text: bytes) -> tuple[dict[str, bytes], Sequence[str]]:
    """Parse ``NAME=KEY`` lines into keys by name, and the faults of invalid lines.

    A name may have several keys. The form is that of ``kubectl create secret generic --from-env-file``; empty lines and
    lines with ``#`` are skipped. A fault contains only the line number, because a misplaced key could appear as a name.
    """
    entries: dict[str, bytes] = {}
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            continue
        # A key may contain '=', so only the first one separates.
        name, equals, key = stripped.partition(b"=")
        named = name.strip().decode("utf-8", "replace")
        if not equals:
            faults.append(f"line {number} is not NAME=KEY")
        elif not _NAME.fullmatch(named):
            faults.append(f"line {number} has no valid name of a key before its '=': use {_NAMES}")
        elif refusal := _key_fault(key.strip()):
            faults.append(f"the key in line {number} {refusal}")
        else:
            entries[named] = entries.get(named, b"") + b"\n" + key
    return entries, faults


def _key_fault(given: bytes) -> str:
    if given.startswith(b"sha256:"):
        return "" if _HASHED.fullmatch(given) else "begins with sha256: but not with 64 hexadecimal digits after it"
    if not MIN_CHARACTERS <= len(given) <= MAX_CHARACTERS:
        return f"has {len(given)} characters; it must have {MIN_CHARACTERS} to {MAX_CHARACTERS}"
    return "" if _KEY.fullmatch(given) else "holds a space, or a character that is not ASCII"
