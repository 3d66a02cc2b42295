from io import BytesIO

import pytest
from PIL import Image

from shoal.errors import InvalidInput
from shoal.wire.items import encode_item
from shoal.wire.signature import Tensor
from tests.client.wire.signatures import PICTURES, TEXTS, signature

TRANSPARENT = Image.new("RGBA", (3, 2), (255, 0, 0, 128))


def sent(render: Image.Image, *content_types: str) -> Image.Image:
    sign = signature((Tensor("image", "BYTES", (-1,), content_types=content_types),))
    return Image.open(BytesIO(encode_item(render, sign)["image"][0]))


def test_a_picture_goes_without_loss_where_the_model_takes_that() -> None:
    assert encode_item(TRANSPARENT, PICTURES)["image"][0].startswith(b"\x89PNG")
    assert sent(TRANSPARENT).format == "PNG"
    assert sent(TRANSPARENT, "image/jpeg", "image/webp").format == "WEBP"


def test_a_picture_of_any_mode_goes_in_the_only_format_that_is_taken() -> None:
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F"):
        for content_type in ("image/jpeg", "image/png", "image/webp"):
            assert sent(Image.new(mode, (3, 2)), content_type).size == (3, 2)


@pytest.mark.parametrize(
    ("content_type", "white"), [("image/png", 65535), ("image/webp", (255, 255, 255)), ("image/jpeg", 255)]
)
@pytest.mark.parametrize("mode", ["I", "I;16"])
def test_a_picture_of_16_bits_is_scaled_and_not_clipped(mode: str, content_type: str, white: object) -> None:
    grey = Image.new("I", (2, 1), 65535)
    grey.putpixel((1, 0), 32896)

    made = sent(grey.convert(mode), content_type)

    assert made.getpixel((0, 0)) == white
    middle = made.getpixel((1, 0))
    value = middle[0] if isinstance(middle, tuple) else middle
    assert value in (32896, 127, 128, 129)


def test_a_model_of_texts_takes_no_picture() -> None:
    with pytest.raises(InvalidInput, match="takes text/plain, not a picture"):
        encode_item(TRANSPARENT, TEXTS)
