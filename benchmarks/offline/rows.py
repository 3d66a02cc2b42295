"""Rows to score, made by the bench, always the same ones."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.inputs import sentences

SEED = 5
SIDES = (240, 360)
"""Of a picture, in pixels."""
MEDIAN_WORDS, MOST_WORDS = 14, 160
GROUP_ROWS = 10_000
Files = list[tuple[str, bytes]]


def pictures(folder: Path, count: int) -> Path:
    """Write so many JPEGs of about 300 x 300 pixels: parts of photographs, no two alike."""
    # Pillow and the photographs are only for who makes them.
    import skimage.data  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    random = np.random.default_rng(SEED)
    photographs = [Image.fromarray(getattr(skimage.data, name)()) for name in ("cat", "chelsea", "coffee", "astronaut")]
    folder.mkdir()
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        width, height = (int(side) for side in random.integers(*SIDES, 2))
        share = random.uniform(0.6, 1.0)
        left, top = (int(random.uniform(0, (1 - share) * side)) for side in photograph.size)
        box = (left, top, left + int(share * photograph.width), top + int(share * photograph.height))
        photograph.resize((width, height), box=box).save(folder / f"{number:06}.jpg", quality=90)
    return folder


def texts(path: Path, count: int) -> Path:
    """Write so many texts: most of a line, some of a page, in no order."""
    random = np.random.default_rng(SEED)
    words = re.findall(r"\w+", " ".join(sentences()))
    lengths = np.clip(random.lognormal(np.log(MEDIAN_WORDS), 0.9, count), 1, MOST_WORDS).astype(int)
    starts = random.integers(0, len(words) - MOST_WORDS, count)
    lines = [" ".join(words[at : at + length]) for at, length in zip(starts, lengths, strict=True)]
    parquet.write_table(pa.table({"id": pa.array(range(count)), "text": lines}), path)
    return path


def numbers(path: Path, count: int) -> Path:
    """Write so many rows of 16 numbers; one part after the other, so that none of it has to be held."""
    random = np.random.default_rng(SEED)
    kind = pa.schema([("x", pa.list_(pa.float32(), 16))])
    row = partial(pa.FixedSizeListArray.from_arrays, type=kind.field("x").type)
    with parquet.ParquetWriter(path, kind) as writer:
        for at in range(0, count, GROUP_ROWS):
            part = random.normal(size=16 * min(GROUP_ROWS, count - at)).astype(np.float32)
            writer.write_table(pa.table([row(pa.array(part))], schema=kind))
    return path
