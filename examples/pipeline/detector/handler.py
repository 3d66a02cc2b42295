"""Find the pictures on a page, as a scanner's program does: what is separated by lines as light as the page.

It stands in for a network that detects objects: one picture in, a list of boxes and of what is in them out, as many as
there are. Neither PyTorch nor a GPU is needed.
"""

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shoal_runtime import ItemError, TensorSpec

LIGHT = 235
"""Of 0 to 255: a line of the page has nothing darker than this, but for SPECKS of it."""
SPECKS = 0.01
SMALLEST = 32
"""Pixels a side; what is smaller is dirt."""
MOST_PIXELS = 50_000_000
Image.MAX_IMAGE_PIXELS = None  # our own limit stands in its place

Box = tuple[int, int, int, int]


class Detector:
    """JPEG or PNG of a page in; boxes (left, top, right, bottom) and the pictures in them, as JPEG, out."""

    tensors = "numpy"
    inputs = (TensorSpec("page", "BYTES", [-1], content_type="image/jpeg,image/png"),)
    outputs = (
        TensorSpec("boxes", "FP32", [-1, -1, 4]),
        TensorSpec("crops", "BYTES", [-1, -1], content_type="image/jpeg"),
        TensorSpec("count", "INT64", [-1]),
    )

    def preprocess(self, page: bytes) -> Image.Image:
        """Decode one page."""
        try:
            image = Image.open(BytesIO(page), formats=("JPEG", "PNG"))
            if image.width * image.height > MOST_PIXELS:
                raise ItemError(f"the page has {image.width} x {image.height} pixels, more than {MOST_PIXELS}")
            return rgb(ImageOps.exif_transpose(image))
        except ItemError:
            raise
        except Exception as error:  # Pillow raises a dozen kinds for broken bytes; all are the client's
            raise ItemError(f"not a whole JPEG or PNG ({len(page)} bytes)") from error

    def forward(self, pages: list[Image.Image]) -> dict[str, Any]:
        """Find the boxes of each page; the lists of a batch are filled up to the longest."""
        found = [list(boxes_of(np.asarray(page).min(axis=2))) for page in pages]
        longest = max(1, *map(len, found))
        boxes = np.zeros((len(pages), longest, 4), np.float32)
        crops = np.full((len(pages), longest), b"", object)
        for row, (page, each) in enumerate(zip(pages, found, strict=True)):
            for index, box in enumerate(each):
                boxes[row, index], crops[row, index] = box, jpeg(page.crop(box))
        return {"boxes": boxes, "crops": crops, "count": np.array(list(map(len, found)), np.int64)}


def boxes_of(darkest: NDArray[np.uint8]) -> Iterator[Box]:
    """Yield the boxes of a page, row by row: bands between light rows, and in each the parts between light columns."""
    for top, bottom in dark_runs(darkest, axis=1):
        for left, right in dark_runs(darkest[top:bottom], axis=0):
            yield left, top, right, bottom


def dark_runs(darkest: NDArray[np.uint8], axis: int) -> Iterator[tuple[int, int]]:
    """Yield from where to where the lines along ``axis`` are not the page's own."""
    dark = (darkest < LIGHT).mean(axis=axis) > SPECKS
    edges = np.flatnonzero(np.diff(np.concatenate([[False], dark, [False]]).astype(np.int8)))
    for begin, end in edges.reshape(-1, 2).tolist():
        if end - begin >= SMALLEST:
            yield begin, end


def rgb(image: Image.Image) -> Image.Image:
    """Return a page in RGB, transparent parts white."""
    if image.mode.startswith("I"):  # 16 bits of grey, which convert would clip
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def jpeg(image: Image.Image) -> bytes:
    """Return a picture as a JPEG file."""
    file = BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()
