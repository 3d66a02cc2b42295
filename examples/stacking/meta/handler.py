"""Say what three estimators together mean: a logistic regression over their probabilities."""

import numpy as np
from numpy.typing import NDArray

from shoal_runtime import Context, TensorSpec

Rows = NDArray[np.float64]


class Meta:
    """The second class's probability by each estimator in, by all of them out."""

    tensors = "numpy"
    inputs = tuple(TensorSpec(name, "FP64", [-1, 2]) for name in ("forest", "neighbours", "line"))
    outputs = (TensorSpec("probability", "FP64", [-1]),)

    def load(self, context: Context) -> None:
        """Read the weights that train.py has found."""
        with np.load(context.model_dir / "weights.npz") as found:
            self._weights, self._bias = found["weights"], float(found["bias"])

    def forward(self, batch: dict[str, Rows]) -> Rows:
        """Weigh a batch of answers."""
        features = np.stack([batch[each.name][:, 1] for each in self.inputs], axis=1)
        probability: Rows = 1 / (1 + np.exp(-(features @ self._weights + self._bias)))
        return probability
