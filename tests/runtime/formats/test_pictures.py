"""Pictures from cameras and scanners: the right pixels, or an error of the row."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from examples.pipeline.detector.handler import Detector
from shoal_runtime import ItemError
from shoal_runtime.formats.encoders import picture

RED, GREY, BLACK, WHITE = [255, 0, 0], [128, 128, 128], [0, 0, 0], [255, 255, 255]


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def grey_of_16_bits() -> bytes:
    return encoded(Image.fromarray(np.array([[0, 0x8000], [0xFFFF, 0x00FF]], np.uint16)))


def rotated() -> bytes:
    image = Image.new("RGB", (2, 1))
    image.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(image, exif=exif)


def palette() -> bytes:
    image = Image.new("P", (1, 1))
    image.putpalette([255, 0, 0])
    return encoded(image, transparency=0)


DECODERS: dict[str, Callable[[bytes], Any]] = {"transformers": picture, "detector": Detector().preprocess}


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize(
    ("data", "pixels"),
    [
        (grey_of_16_bits(), [[BLACK, GREY], [WHITE, BLACK]]),
        (encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"), [[[254, 0, 0]] * 8] * 8),
        (rotated(), [[RED], [BLACK]]),
        (encoded(Image.new("RGB", (1, 1), "red")), [[RED]]),
        (encoded(Image.new("1", (1, 1), 1)), [[WHITE]]),
        (encoded(Image.new("LA", (1, 1), (128, 255))), [[GREY]]),
    ],
    ids=["16 bits", "CMYK", "EXIF", "1x1", "1 bit", "grey and alpha"],
)
def test_pixels_are_those_that_a_viewer_shows(decode: Callable[[bytes], Any], data: bytes, pixels: Any) -> None:
    image = decode(data)

    assert image.mode == "RGB"
    assert np.abs(np.asarray(image).astype(int) - np.array(pixels)).max() <= 1


def test_transparency_is_dropped_or_white() -> None:
    assert [np.asarray(decode(palette())).tolist() for decode in DECODERS.values()] == [[[RED]], [[WHITE]]]


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)
def test_a_truncated_picture_is_an_error_of_its_row(decode: Callable[[bytes], Any]) -> None:
    whole = encoded(Image.effect_noise((64, 64), 50), "JPEG")
    with pytest.raises(ItemError, match="JPEG or PNG"):
        decode(whole[: len(whole) // 2])
