"""Real inputs of the example models, always the same ones."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo import picture_files

ROOT = Path(__file__).parents[1]
PICTURES = 48


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a model is asked, and how a client sends one of them.

    Args:
        items: as ``preprocess`` takes them.
        encode: one of them as a request's body.
        content_type: of that body.
    """

    items: Callable[[], Sequence[Any]]
    encode: Callable[[Any], bytes]
    content_type: str


def pictures() -> list[bytes]:
    """Return JPEG files of six photographs, whole and cut."""
    return [file for _, file in picture_files(PICTURES)]


def sentences() -> list[str]:
    """Return the sentences of this repository's licence: 3 to 60 words, in its order."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    parts = (" ".join(part.split()) for part in re.split(r"(?<=[.;:])\s+|\n\s*\n", text))
    return [part for part in parts if len(part.split()) >= 3]


INPUTS: Mapping[str, Inputs] = {
    "cat": Inputs(pictures, bytes, "image/jpeg"),
    "embed": Inputs(sentences, str.encode, "text/plain"),
}
