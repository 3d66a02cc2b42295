"""The network: `--model-file` of the archive."""

import torch
from words import WEIGHTS


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor(list(WEIGHTS.values())))

    def forward(self, counts):
        return torch.sigmoid(counts @ self.weights)
