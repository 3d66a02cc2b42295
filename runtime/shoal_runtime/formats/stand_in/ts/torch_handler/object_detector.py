"""TorchServe's default handler `object_detector`."""

from typing import Any

import torch
from PIL import Image

from ts.torch_handler.vision_handler import VisionHandler, to_tensor
from ts.utils.util import map_class_to_label


class ObjectDetector(VisionHandler):
    """Handler that returns the label, box and score of each object in a picture."""

    threshold = 0.5

    def image_processing(self, image: Image.Image) -> torch.Tensor:
        """Convert a picture of any size to a tensor."""
        return to_tensor(image)

    def postprocess(self, data: Any) -> list[list[dict[str, Any]]]:
        """Return each picture's objects whose score is at least `threshold`."""
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
