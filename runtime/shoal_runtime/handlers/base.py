"""The interface of a model, and what a given object implements of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal_runtime.handlers.spec import PaddingRule


class Handler(Protocol):
    """What every model has; docs/handlers.md lists the optional methods."""

    def forward(self, batch: Any) -> Any:
        """Run one batch."""


@dataclass(frozen=True, slots=True)
class Stages:
    """A handler's methods, found once.

    Args:
        forward: batch in, batch out.
        preprocess: row in, anything out; None when the handler has none.
        postprocess: row out; None when the handler has none.
        preprocess_padding: rules for what `preprocess` returns.
    """

    forward: Callable[[Any], Any]
    preprocess: Callable[[Any], Any] | None = None
    postprocess: Callable[[Any], Any] | None = None
    preprocess_padding: Sequence[PaddingRule] = ()


def stages_of(handler: Handler) -> Stages:
    """Return the handler's stages."""
    return Stages(
        forward=handler.forward,
        preprocess=getattr(handler, "preprocess", None),
        postprocess=getattr(handler, "postprocess", None),
        preprocess_padding=tuple(getattr(handler, "preprocess_padding", ())),
    )
