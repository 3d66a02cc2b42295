"""A handler as TorchServe's tutorials write them; nothing in it knows of Shoal."""

import torch
from ts.torch_handler.base_handler import BaseHandler
from words import LABELS, WEIGHTS


class Sentiment(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.vocabulary = {word: index for index, word in enumerate(WEIGHTS)}

    def preprocess(self, data):
        texts = [row.get("data") or row.get("body") for row in data]
        texts = [text.decode() if isinstance(text, (bytes, bytearray)) else text for text in texts]
        counts = torch.zeros(len(texts), len(self.vocabulary))
        for row, text in enumerate(texts):
            for word in text.lower().split():
                if word in self.vocabulary:
                    counts[row, self.vocabulary[word]] += 1
        return counts

    def postprocess(self, data):
        return [
            {"label": LABELS[int(value > 0.5)], "probability": round(value, 4)} for value in data.flatten().tolist()
        ]
