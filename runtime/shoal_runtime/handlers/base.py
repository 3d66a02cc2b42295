"""Interface of a handler: the methods of a model's class, and the context that it receives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from shoal_runtime.errors import LoadError
from shoal_runtime.signature.spec import Rule


@dataclass(frozen=True, slots=True)
class Context:
    """Device, parameters and limits that a handler's `load` receives."""

    model_dir: Path
    """Directory of the model's files. Treat it as read-only."""
    device: Any
    """Device of the tensors given to `forward`: a `torch.device`, or the text `cpu` for a model without torch."""
    dtype: Any
    """Requested floating-point type of torch, or None when the model may choose."""
    max_batch_size: int
    """Maximum rows per call of `forward`."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """`[parameters]` of model.toml, overridden by the parameters of the InferenceService."""
    threads: int = 1
    """CPU threads for one forward, for libraries that would otherwise use all cores of the machine."""


class Handler(Protocol):
    """A model that the runtime can run. docs/reference/handler-api.md lists its optional methods."""

    def forward(self, batch: Any) -> Any:
        """Run the model on one batch."""


@dataclass(frozen=True, slots=True)
class HandlerMethods:
    """Methods of a handler, looked up once; None for a method that the handler does not define."""

    forward: Callable[[Any], Any]
    preprocess: Callable[[Any], Any] | None = None
    postprocess: Callable[[Any], Any] | None = None
    preprocess_padding: Sequence[Rule] = ()
    """Padding of the tensors that `preprocess` returns."""


def methods_of(handler: Handler) -> HandlerMethods:
    """Look up the methods of a handler.

    Raises:
        LoadError: `preprocess_padding` holds an object other than a padding rule.
    """
    # Checked when the model loads, not with the first request.
    rules = tuple(getattr(handler, "preprocess_padding", ()))
    for rule in rules:
        if not isinstance(rule, Rule):
            raise LoadError(
                f'preprocess_padding must hold PaddingRule("name", pad_axis=1, ...); it holds a {type(rule).__name__}'
            )
    return HandlerMethods(
        handler.forward, getattr(handler, "preprocess", None), getattr(handler, "postprocess", None), rules
    )
