"""Detection of objects in pictures."""

from typing import Any

import torch
from PIL import Image

from ts.torch_handler.vision_handler import VisionHandler, to_tensor
from ts.utils.util import map_class_to_label


class ObjectDetector(VisionHandler):
    """Return the box of each object by its label, and its score."""

    threshold = 0.5

    def image_processing(self, image: Image.Image) -> torch.Tensor:
        """Return a picture of any size as a tensor."""
        return to_tensor(image)

    def postprocess(self, data: Any) -> list[list[dict[str, Any]]]:
        """Return the objects with a score of at least `threshold`."""
        results = []
        for row in data:
            sure = row["scores"] >= self.threshold
            boxes, classes, scores = (row[key][sure].tolist() for key in ("boxes", "labels", "scores"))
            found = [
                {**map_class_to_label([[box]], self.mapping, [[each]])[0], "score": score}
                for box, each, score in zip(boxes, classes, scores, strict=True)
            ]
            results.append(found)
        return results
