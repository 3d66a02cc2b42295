"""The interface of a model: what it is told, and what it may implement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shoal_runtime.errors import LoadError
from shoal_runtime.handlers.spec import Rule


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler is told when it loads.

    Args:
        model_dir: the directory with the model's files; treat it as read-only.
        device: where tensors given to `forward` lie: torch's own, or the word `cpu` for a model without torch.
        dtype: the floating-point type asked for, torch's own; None when the model may choose.
        max_batch_size: the most rows `forward` gets at once.
        parameters: `[parameters]` of model.toml under those of the InferenceService.
        threads: of the CPU, for one forward: for libraries that would take all of the machine's.
    """

    model_dir: Path
    device: Any
    dtype: Any
    max_batch_size: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1


class Handler(Protocol):
    """What every model has; docs/reference/handler-api.md lists the optional methods."""

    def forward(self, batch: Any) -> Any:
        """Run one batch."""


@dataclass(frozen=True, slots=True)
class Stages:
    """A handler's methods, found once; None for those that it has not, and padding for what `preprocess` returns."""

    forward: Callable[[Any], Any]
    preprocess: Callable[[Any], Any] | None = None
    postprocess: Callable[[Any], Any] | None = None
    preprocess_padding: Sequence[Rule] = ()


def stages_of(handler: Handler) -> Stages:
    """Return the handler's stages.

    Raises:
        LoadError: `preprocess_padding` holds something other than padding rules.
    """
    rules = tuple(getattr(handler, "preprocess_padding", ()))
    for rule in rules:
        if not isinstance(rule, Rule):
            raise LoadError(
                f'preprocess_padding holds a {type(rule).__name__}; it takes PaddingRule("name", pad_axis=1, ...)'
            )
    return Stages(handler.forward, getattr(handler, "preprocess", None), getattr(handler, "postprocess", None), rules)
