"""A perceptron small enough that serving it costs more than running it: what the server adds."""

import torch
from torch import nn

from shoal_runtime import Context, TensorSpec

SEED = 20
FEATURES = 16
HIDDEN = 256


class Mlp:
    """y = W2 relu(W1 x), 16 to 256 to 16, with the same weights on every start."""

    inputs = (TensorSpec("x", "FP32", [-1, FEATURES]),)
    outputs = (TensorSpec("y", "FP32", [-1, FEATURES]),)

    def load(self, context: Context) -> None:
        """Draw the weights from a seed of their own, and leave the global generator alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            layers = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, FEATURES))
        self._dtype = context.dtype or torch.float32
        self._layers = layers.eval().to(context.device, self._dtype)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return ``y`` [n, 16] for ``x`` [n, 16]."""
        y: torch.Tensor = self._layers(batch["x"].to(self._dtype))
        return y.float()
