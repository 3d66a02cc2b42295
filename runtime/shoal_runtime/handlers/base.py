"""The interface of a model, and what a given object implements of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal_runtime.errors import LoadError
from shoal_runtime.handlers.spec import Rule


class Handler(Protocol):
    """What every model has; docs/handlers.md lists the optional methods."""

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
