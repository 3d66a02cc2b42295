"""TorchServe's default handler `image_segmenter`."""

from typing import Any

import torch

from ts.torch_handler.vision_handler import VisionHandler


class ImageSegmenter(VisionHandler):
    """Handler that returns the class of each pixel of a picture."""

    def postprocess(self, data: Any) -> Any:
        """Return [class, probability] of each pixel, for each picture of a batch."""
        best = torch.max(torch.softmax(data["out"], dim=1), dim=1)
        return torch.stack([best.indices.type(best.values.dtype), best.values], dim=3).tolist()
