"""What Shoal runs: rows come one by one into preprocess, and all of a batch together into forward."""

import torch
from words import WORDS

from shoal_runtime import ItemError, TensorSpec


class Mood:
    """Tell the mood of a text by its words."""

    inputs = (TensorSpec("text", "BYTES", [-1], content_type="text/plain"),)
    outputs = (TensorSpec("mood", "BYTES", [-1]), TensorSpec("score", "FP32", [-1]))

    def preprocess(self, text: str) -> dict[str, torch.Tensor]:
        """Return one row: how good its words are, all together."""
        if not text.strip():
            raise ItemError("the text is empty")
        return {"sum": torch.tensor(float(sum(WORDS.get(word, 0) for word in text.lower().split())))}

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return a score between 0 and 1 for each row of the batch."""
        return torch.sigmoid(batch["sum"])

    def postprocess(self, score: float) -> dict[str, object]:
        """Return one row's outputs."""
        return {"mood": "good" if score > 0.5 else "bad" if score < 0.5 else "unknown", "score": score}

    def warmup_items(self) -> list[str]:
        """Return texts to try before anybody asks."""
        return ["a good day"]
