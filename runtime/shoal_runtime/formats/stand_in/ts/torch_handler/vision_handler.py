"""TorchServe's base class of handlers of pictures, with Pillow instead of torchvision."""

import io
from typing import Any

import numpy as np
import torch
from PIL import Image

from shoal_schema.wire.base64 import decode_base64
from ts.torch_handler.base_handler import BaseHandler

SHORT_EDGE, EDGE = 256, 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet."""


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Convert a picture to a tensor of shape [channels, height, width], values from 0 to 1.

    Raises:
        ValueError: the picture has more than 8 bits per channel.
    """
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"a picture of mode {image.mode} has more than 8 bits per channel. Send it as RGB")
    pixels = np.array(image, dtype=np.uint8)
    planes = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return torch.from_numpy(planes).permute(2, 0, 1).contiguous().float() / 255


def imagenet(image: Image.Image) -> torch.Tensor:
    """Resize and crop a picture to its center, 224 x 224, normalized with ImageNet's mean and deviation."""
    width, height = image.size
    long = int(SHORT_EDGE * max(width, height) / min(width, height))
    # Resize the shorter edge to 256, then crop 224 x 224.
    size = (SHORT_EDGE, long) if width <= height else (long, SHORT_EDGE)
    resized = image.resize(size, Image.Resampling.BILINEAR)
    left, top = (round((edge - EDGE) / 2) for edge in size)
    tensor = to_tensor(resized.crop((left, top, left + EDGE, top + EDGE)))
    if len(tensor) != len(MEAN):
        raise ValueError(f"a picture of mode {image.mode} has {len(tensor)} channels, not {len(MEAN)}. Send it as RGB")
    return (tensor - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


class VisionHandler(BaseHandler):
    """Handler of pictures sent as bytes, base64 or lists of numbers."""

    def initialize(self, context: Any) -> None:
        """Load the archive's model, and apply the limit on the size of pictures."""
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels"):
            Image.MAX_IMAGE_PIXELS = None

    def image_processing(self, image: Image.Image) -> torch.Tensor:
        """Resize, crop and normalize a picture to a tensor."""
        return imagenet(image)

    def preprocess(self, data: Any) -> torch.Tensor:
        """Convert the pictures of a batch to one tensor on the device."""
        images = []
        for row in data:
            # A form has the part "data", any other request the body.
            image = row.get("data") or row.get("body")
            # Text is base64.
            if isinstance(image, str):
                image = decode_base64(image)
            if isinstance(image, bytes | bytearray):
                images.append(self.image_processing(Image.open(io.BytesIO(image))))
            else:
                images.append(torch.FloatTensor(image))
        return torch.stack(images).to(self.device)
