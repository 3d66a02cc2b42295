"""A model whose weights are another model's."""

from shoal_runtime import Context


class Broken:
    """Never loads."""

    def load(self, context: Context) -> None:
        """Raise, as a handler does that finds other weights than it expects."""
        raise ValueError(f"the weights in {context.model_dir.name} have 10 classes, not 1000")
