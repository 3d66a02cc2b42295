"""Segmentation of pictures: the class of each pixel."""

from typing import Any

import torch

from ts.torch_handler.vision_handler import VisionHandler


class ImageSegmenter(VisionHandler):
    """Return height x width x [class, probability]."""

    def postprocess(self, data: Any) -> Any:
        """Return the most probable class of each pixel."""
        best = torch.max(torch.softmax(data["out"], dim=1), dim=1)
        return torch.stack([best.indices.type(best.values.dtype), best.values], dim=3).tolist()
