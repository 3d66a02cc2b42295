"""A handler: preprocess takes one row, forward takes all rows of a batch."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from words import WORDS

from shoal_runtime import ItemError, TensorSpec


class Mood:
    """Classifier of a text's mood, by the scores of its words."""

    # Without this line, forward gets PyTorch tensors, on the GPU if there is one.
    tensors = "numpy"
    inputs = (TensorSpec("text", "BYTES", [-1], content_type="text/plain"),)
    outputs = (TensorSpec("mood", "BYTES", [-1]), TensorSpec("score", "FP32", [-1]))

    def preprocess(self, text: str) -> Mapping[str, Any]:
        """Return one row: the sum of the scores of the text's words."""
        if not text.strip():
            raise ItemError("the text is empty")
        return {"sum": np.float32(sum(WORDS.get(word, 0) for word in text.lower().split()))}

    def forward(self, batch: Mapping[str, Any]) -> Any:
        """Return a score between 0 and 1 for each row of the batch."""
        return 1 / (1 + np.exp(-batch["sum"]))

    def postprocess(self, score: float) -> Mapping[str, Any]:
        """Return one row's outputs."""
        return {"mood": "good" if score > 0.5 else "bad" if score < 0.5 else "unknown", "score": score}

    def warmup_items(self) -> list[str]:
        """Return texts to run before the first request."""
        return ["a good day"]
