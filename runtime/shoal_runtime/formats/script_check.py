"""Checks of untrusted TorchScript archives for code that does more than compute.

TorchScript runs without Python, but its code can read and write files, open connections and access raw addresses. A
module's `__setstate__` runs such code while the archive is loaded, so the code is checked before torch compiles it.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.operators import NAMESPACES, REFUSED
from shoal_runtime.formats.source import UntrustedFile

CLASSES: Final = frozenset({"quantized", "rnn", "sparse", "mkldnn", "xnnpack"})
"""Native classes of packed weights; others include sockets and files."""
LEGACY: Final = "model.json"
MAX_RECORD_BYTES: Final = 1024**3
"""Maximum of code and state; weights are not limited."""

_WORD: Final = re.compile(rf"\b(?:{REFUSED.pattern})\b")
_ESCAPE: Final = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{2})")
_TEXT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"' + r"|'(?:[^'\\\n]|\\.)*'")
_JOINT: Final = re.compile(r"""["']\s*["']""")
_BARE: Final = re.compile(r"\b(?:torch|ops)\b(?!\s*\.)")
_NAMESPACE: Final = re.compile(r"(?<![\w.])ops\s*\.\s*(\w+)")
_CLASS: Final = re.compile(r"\btorch\s*\.\s*classes\s*\.\s*(\w+)")


def check_script(path: Path) -> None:
    """Check the code and the pickled state of a TorchScript archive, with torch's own reader.

    Raises:
        UntrustedFile: the archive does more than compute, such as reading or writing files.
    """
    reader = torch._C.PyTorchFileReader(str(path))
    names: list[str] = reader.get_all_records()
    lowered = [name.lower() for name in names]
    if len(set(lowered)) != len(names) or LEGACY in lowered:
        raise UntrustedFile(path.name, "two records with one name, or an obsolete format")
    for name in names:
        if not name.lower().endswith((".py", ".pkl")):
            continue  # weights
        if reader.get_record_size(name) > MAX_RECORD_BYTES:
            raise LoadError(f"{path.name}: {name} exceeds {MAX_RECORD_BYTES} bytes")
        content = reader.get_record(name)
        code = name.lower().endswith(".py")
        for fault in faults_of_code(content.decode("utf-8", "replace")) if code else faults_of_state(content):
            raise UntrustedFile(path.name, f"{fault} ({name})")


def faults_of_code(code: str) -> Iterator[str]:
    """Describe each call in TorchScript code that does more than compute."""
    # getattr could get a name as a text, with escapes and in pieces.
    unescaped = _ESCAPE.sub(
        lambda escape: chr(int(escape[1][1:], 16) if escape[1].startswith("x") else int(escape[1], 8)), code
    )
    joined = _JOINT.sub("", unescaped)
    for text in (code, joined):
        yield from (f"the operator {found!r}" for found in _WORD.findall(text))
        yield from _foreign_classes(text)
    yield from (f"a bare {found!r}" for found in _BARE.findall(_TEXT.sub('""', code)))
    for namespace in _NAMESPACE.findall(code):
        if namespace not in NAMESPACES and namespace != "prim":
            yield f"operators of {namespace!r}"


def faults_of_state(pickled: bytes) -> Iterator[str]:
    """Describe each native class in a pickled state that is not allowed.

    Only classes of packed weights are allowed.
    """
    # A class is named on two lines, split anywhere between its parts.
    yield from _foreign_classes(pickled.decode("latin-1").replace("\n", "."))


def _foreign_classes(text: str) -> Iterator[str]:
    for namespace in _CLASS.findall(text):
        if namespace not in CLASSES:
            yield f"a native class of {namespace!r}"
