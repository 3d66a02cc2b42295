import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image

from examples.cat.model.handler import MAX_PIXELS, SIDE, Cat, decode
from shoal_runtime import Context, ItemError

Encode = Callable[..., bytes]

HOUSE_CATS = {"tabby", "tiger cat", "Egyptian cat"}


@pytest.fixture(scope="module")
def cat(context_of: Callable[..., Context]) -> Cat:
    model = Cat()
    model.load(context_of("cat"))
    return model


def answers(model: Cat, *images: bytes) -> list[dict[str, Any]]:
    rows = [torch.from_numpy(model.preprocess(image)) for image in images]
    with torch.inference_mode():
        batch = model.forward(torch.stack(rows))
    count = len(images)
    return [model.postprocess({k: v[i].numpy() for k, v in batch.items()}) for i in range(count)]


def red_and_blue(size: tuple[int, int] = (64, 48)) -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", size, "red")
    image.paste("blue", (size[0] // 2, 0, *size))
    return image


def png_header(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it is this large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


@pytest.mark.integration
@pytest.mark.parametrize("picture", ["cat", "chelsea"])
@pytest.mark.parametrize("format_", ["JPEG", "PNG"])
def test_a_cat_is_a_cat(picture: str, format_: str, cat: Cat, encoded: Encode) -> None:
    image = Image.fromarray(getattr(skimage.data, picture)())

    [answer] = answers(cat, encoded(image, format_))

    assert answer["label"][0] in HOUSE_CATS
    assert answer["class"][0] in {281, 282, 285}
    assert set(answer["label"][:3]) == HOUSE_CATS
    assert list(answer["probability"]) == sorted(answer["probability"], reverse=True)
    assert sum(answer["probability"][:3]) > 0.8


def test_a_cup_of_coffee_beside_a_cat_is_itself(cat: Cat, cat_picture: Image.Image, encoded: Encode) -> None:
    coffee = Image.fromarray(skimage.data.coffee())

    first, second = answers(cat, encoded(coffee), encoded(cat_picture))

    assert first["label"][0] == "espresso"
    assert second["label"][0] in HOUSE_CATS


def test_rows_of_a_batch_do_not_touch_one_another(cat: Cat, cat_picture: Image.Image, encoded: Encode) -> None:
    picture, other = encoded(cat_picture), encoded(red_and_blue())

    [alone] = answers(cat, picture)
    together = answers(cat, other, picture, other)[1]

    assert list(together["class"]) == list(alone["class"])
    np.testing.assert_allclose(together["probability"], alone["probability"], rtol=1e-4)


@pytest.mark.parametrize(
    ("mode", "format_"),
    [("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "PNG"), ("RGB", "PNG"), ("RGB", "JPEG")],
)
def test_colours_come_out_whatever_the_mode(mode: str, format_: str, encoded: Encode) -> None:
    image = decode(encoded(red_and_blue().convert(mode), format_))

    assert image.mode == "RGB"
    np.testing.assert_allclose(np.array(image)[24, 8], (255, 0, 0), atol=8)
    np.testing.assert_allclose(np.array(image)[24, 56], (0, 0, 255), atol=8)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "I;16"])
def test_grey_stays_as_light_as_it_was(mode: str, encoded: Encode) -> None:
    if mode == "I;16":
        picture = Image.fromarray(np.full((8, 8), 0xFFFF, np.uint16))
        picture.paste(0, (0, 0, 4, 8))
    else:
        picture = Image.new(mode, (8, 8), "white")
        picture.paste("black", (0, 0, 4, 8))

    image = decode(encoded(picture, "PNG"))

    assert image.getpixel((1, 1)) == (0, 0, 0)
    assert image.getpixel((6, 6)) == (255, 255, 255)


def test_sixteen_bits_of_grey_are_scaled_not_clipped(encoded: Encode) -> None:
    picture = Image.fromarray(np.full((8, 8), 0x8000, np.uint16))

    assert decode(encoded(picture, "PNG")).getpixel((0, 0)) == (128, 128, 128)


def test_what_is_transparent_is_white(encoded: Encode) -> None:
    picture = Image.new("RGBA", (8, 8), (255, 0, 0, 0))

    assert decode(encoded(picture, "PNG")).getpixel((4, 4)) == (255, 255, 255)


def test_a_palette_with_a_transparent_colour_is_white_there(encoded: Encode) -> None:
    picture = red_and_blue().convert("P")
    red = picture.getpixel((0, 0))

    image = decode(encoded(picture, "PNG", transparency=red))

    assert image.getpixel((0, 0)) == (255, 255, 255)
    assert image.getpixel((60, 0)) == (0, 0, 255)


def test_a_picture_is_turned_upright_as_its_exif_says(encoded: Encode) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down

    image = decode(encoded(red_and_blue(), "JPEG", exif=exif))

    np.testing.assert_allclose(np.array(image)[24, 4], (0, 0, 255), atol=8)


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (5000, 4000)])
def test_any_size_comes_out_as_the_networks_own(size: tuple[int, int], cat: Cat, encoded: Encode) -> None:
    pixels = cat.preprocess(encoded(Image.new("RGB", size, "red"), "PNG"))

    assert pixels.shape == (SIDE, SIDE, 3)
    assert pixels.dtype == np.uint8
    assert (pixels == [255, 0, 0]).all()


def test_a_large_jpeg_decoded_at_a_fraction_looks_the_same(cat: Cat, encoded: Encode) -> None:
    large = red_and_blue((4000, 3000))

    small = cat.preprocess(encoded(large))

    np.testing.assert_allclose(small[SIDE // 2, 10], (255, 0, 0), atol=8)
    np.testing.assert_allclose(small[SIDE // 2, -10], (0, 0, 255), atol=8)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(ItemError, match=rf"100000 x 100000 pixels, more than {MAX_PIXELS}"):
        decode(png_header(100_000, 100_000))


def test_a_picture_that_ends_early_is_refused(encoded: Encode, cat_picture: Image.Image) -> None:
    for format_ in ("JPEG", "PNG"):
        whole = encoded(cat_picture, format_)
        for end in (10, 100, len(whole) // 2):
            with pytest.raises(ItemError, match="not a whole JPEG or PNG"):
                decode(whole[:end])


@pytest.mark.parametrize("data", [b"", b"hello", b"\xff\xd8\xff", b"GIF89a" + bytes(50), png_header(20, 0)])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(ItemError, match="not a whole JPEG or PNG") as caught:
        decode(data)
    assert "object at" not in str(caught.value)


def test_no_damage_brings_anything_but_a_picture_or_an_item_error(encoded: Encode) -> None:
    generator = np.random.default_rng(1)
    whole = {f: encoded(red_and_blue(), f) for f in ("JPEG", "PNG")}

    for data in whole.values():
        for _ in range(200):
            broken = np.frombuffer(data, np.uint8).copy()
            broken[generator.integers(0, len(data), 4)] = generator.integers(0, 256, 4)
            with suppress(ItemError):
                assert decode(broken.tobytes()).mode == "RGB"
