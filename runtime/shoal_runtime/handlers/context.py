"""What a handler is told when it loads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Context:
    """The surroundings of a model.

    Args:
        model_dir: the directory with the model's files; treat it as read-only.
        device: where tensors given to `forward` lie.
        dtype: the floating-point type asked for; None when the model may choose.
        max_batch_size: the most rows `forward` gets at once.
        parameters: `[parameters]` of model.toml under those of the InferenceService.
    """

    model_dir: Path
    device: "torch.device"
    dtype: "torch.dtype | None"
    max_batch_size: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
