"""TorchServe's default handler `image_classifier`."""

from typing import Any

import torch

from ts.torch_handler.vision_handler import VisionHandler
from ts.utils.util import map_class_to_label


class ImageClassifier(VisionHandler):
    """Handler that returns the most probable classes of a picture, five by default."""

    topk = 5

    def set_max_result_classes(self, topk: int) -> None:
        """Set how many classes are returned per picture."""
        self.topk = topk

    def get_max_result_classes(self) -> int:
        """Return how many classes are returned per picture."""
        return self.topk

    def postprocess(self, data: Any) -> list[dict[str, float]]:
        """Return the probabilities of each picture's best classes, by label."""
        probabilities, classes = torch.topk(torch.softmax(data, dim=1), self.topk, dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
