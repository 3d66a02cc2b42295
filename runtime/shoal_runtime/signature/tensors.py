"""Signature of a loaded model: inputs, outputs and batch sizes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal_runtime.errors import LoadError
from shoal_runtime.signature.ragged import check_ragged, index_names, published
from shoal_runtime.signature.spec import ANY, TensorSpec


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs, outputs and batch sizes of a model."""

    inputs: tuple[TensorSpec, ...]
    """In the order of the model."""
    outputs: tuple[TensorSpec, ...]
    """In the model's order, as clients see them."""
    max_batch_size: int
    """Maximum rows per call."""
    allowed_batch_sizes: tuple[int, ...] = ()
    """Sizes to which batches are padded, increasing up to `max_batch_size`; empty for any size."""
    returned: tuple[TensorSpec, ...] = ()
    """Outputs as `forward` returns them, if some are ragged; otherwise empty."""

    def input(self, name: str) -> TensorSpec | None:
        """Return the input with a given name, or None."""
        for spec in self.inputs:
            if spec.name == name:
                return spec
        return None


def as_returned(signature: Signature) -> Signature:
    """Return a signature with the outputs that `forward` returns, before ragged ones are grouped."""
    return replace(signature, outputs=signature.returned, returned=()) if signature.returned else signature


def make_signature(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    max_batch_size: int,
    allowed_batch_sizes: Sequence[int],
) -> Signature:
    """Check inputs, outputs and batch sizes, and return them as a signature.

    A model with a fixed batch dimension accepts batches of exactly this size, to which smaller batches are padded.

    Raises:
        LoadError: names repeat, a mask or unpad_input names no input, batch dimensions differ, or a ragged output
            declares no row numbers.
    """
    _check_names(inputs, outputs)
    indices = index_names(outputs)
    by_row = [spec for spec in outputs if spec.rows is None and spec.name not in indices]
    # If an input has another size, its dimension does not count rows: values of one client would apply to others.
    rows = inputs[0].shape[inputs[0].batch_dim]
    odd = [spec for spec in inputs if spec.shape[spec.batch_dim] != rows]
    odd += [spec for spec in by_row if spec.shape[spec.batch_dim] not in (rows, ANY)]
    if odd:
        shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in (inputs[0], *odd))
        raise LoadError(
            f"the batch dimensions of inputs and outputs differ: {shapes}. Set batch_dim in model.toml to the dimension"
            " that counts rows, or export tensors without rows as constants"
        )
    # A fixed batch is the only allowed size.
    if rows != ANY:
        max_batch_size, allowed_batch_sizes = rows, (rows,)

    def free_rows(spec: TensorSpec) -> TensorSpec:
        return replace(spec, shape=[*spec.shape[: spec.batch_dim], ANY, *spec.shape[spec.batch_dim + 1 :]])

    # Specifications with -1 in the batch dimension, as published.
    sizes, taken = tuple(allowed_batch_sizes), tuple(map(free_rows, inputs))
    if len(by_row) == len(outputs):
        return Signature(taken, tuple(map(free_rows, outputs)), max_batch_size, sizes)
    check_ragged(outputs, max_batch_size=max_batch_size)
    returned = tuple(free_rows(spec) if spec in by_row else spec for spec in outputs)
    return Signature(taken, published(returned), max_batch_size, sizes, returned)


def _check_names(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    if not inputs or not outputs:
        what = "inputs" if not inputs else "outputs"
        raise LoadError(f"the model declares no {what}. Set `{what}` on the handler class or in model.toml")
    names = {spec.name for spec in inputs}
    for kind, specs in (("input", inputs), ("output", outputs)):
        name, count = Counter(spec.name for spec in specs).most_common(1)[0]
        if count > 1:
            raise LoadError(f"two {kind}s are named {name!r}")
    ragged = [spec.name for spec in inputs if spec.rows is not None]
    if ragged:
        raise LoadError(f"input {ragged[0]}: `rows` applies to outputs only")
    # Masks and lengths must refer to inputs.
    references = [(spec, "pad_mask", spec.pad_mask) for spec in inputs]
    references += [(spec, "unpad_input", spec.unpad_input) for spec in outputs]
    for spec, key, value in references:
        if value is not None and value not in names:
            raise LoadError(f"tensor {spec.name}: {key} names {value!r}, which is not an input")
