"""Pillow pictures as items, recognized by their methods: Pillow is not imported."""

from io import BytesIO
from typing import Any

from shoal.errors import InvalidInput
from shoal.wire.signature import Tensor

FORMATS = {"image/png": "PNG", "image/webp": "WEBP", "image/jpeg": "JPEG", "image/bmp": "BMP", "image/tiff": "TIFF"}
"""Pillow format by content type; lossless formats first, in order of preference."""
_MODES = {"PNG": ("1", "L", "LA", "I;16", "P", "RGB", "RGBA"), "JPEG": ("RGB", "L", "CMYK"), "WEBP": ("RGB", "RGBA")}
_OPTIONS: dict[str, dict[str, Any]] = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95}}


def is_picture(value: Any) -> bool:
    """Return whether a value is a Pillow picture."""
    return hasattr(value, "getbands") and hasattr(value, "save")


def picture_bytes(picture: Any, tensor: Tensor) -> bytes:
    """Return a picture encoded in a format that the input accepts; PNG if the input declares none.

    Raises:
        InvalidInput: the input does not take pictures.
    """
    taken = [name for content_type, name in FORMATS.items() if content_type in tensor.content_types]
    if tensor.content_types and not taken:
        raise InvalidInput(f"input {tensor.name} takes {', '.join(tensor.content_types)}, not a picture")
    # FORMATS is in order of preference.
    chosen = (taken or ["PNG"])[0]
    if picture.mode in ("I", "I;16"):  # 16-bit values would be clipped as RGB
        whole = picture.convert("I")
        # 257 maps 65535 to 255.
        picture = whole.convert("I;16") if chosen == "PNG" else whole.point(lambda value: value / 257).convert("L")
    if picture.mode not in _MODES.get(chosen, (picture.mode,)):
        picture = picture.convert("RGB")
    written = BytesIO()
    picture.save(written, chosen, **_OPTIONS.get(chosen, {}))
    return written.getvalue()
