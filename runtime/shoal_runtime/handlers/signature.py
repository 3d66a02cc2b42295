"""The signature of a loaded model: its tensors, and how many rows it takes at a time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal_runtime.errors import LoadError
from shoal_runtime.handlers.ragged import check_ragged, index_names, published
from shoal_runtime.handlers.spec import ANY, TensorSpec


@dataclass(frozen=True, slots=True)
class Signature:
    """What a model takes and gives.

    Args:
        inputs: in the order the model takes them.
        outputs: in the order the model gives them.
        max_batch_size: rows it takes in one call.
        allowed_batch_sizes: row counts a batch is padded up to, the last being `max_batch_size`; empty means any.
        returned: what forward returns, where some of it is ragged; empty means `outputs`.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    allowed_batch_sizes: tuple[int, ...] = ()
    returned: tuple[TensorSpec, ...] = ()

    def input(self, name: str) -> TensorSpec | None:
        """Return the input of that name, or None."""
        for spec in self.inputs:
            if spec.name == name:
                return spec
        return None


def as_returned(signature: Signature) -> Signature:
    """Return the signature with the outputs that forward returns."""
    return replace(signature, outputs=signature.returned, returned=()) if signature.returned else signature


def make_signature(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    max_batch_size: int,
    allowed_batch_sizes: Sequence[int],
) -> Signature:
    """Return the signature that these tensors and limits make.

    A model whose batch dimension is a fixed number takes batches of exactly that many rows:
    smaller ones are padded.

    Raises:
        LoadError: names repeat, a mask or unpad_input names nothing, batch dimensions disagree, or a ragged output does
            not say whose its items are.
    """
    _check_names(inputs, outputs)
    indices = index_names(outputs)
    by_row = [spec for spec in outputs if spec.rows is None and spec.name not in indices]
    rows = _rows(inputs, by_row)
    if rows != ANY:
        max_batch_size, allowed_batch_sizes = rows, (rows,)

    def free_rows(spec: TensorSpec) -> TensorSpec:
        return replace(spec, shape=[*spec.shape[: spec.batch_dim], ANY, *spec.shape[spec.batch_dim + 1 :]])

    sizes, taken = tuple(allowed_batch_sizes), tuple(map(free_rows, inputs))
    if len(by_row) == len(outputs):
        return Signature(taken, tuple(map(free_rows, outputs)), max_batch_size, sizes)
    check_ragged(outputs, max_batch_size=max_batch_size)
    returned = tuple(free_rows(spec) if spec in by_row else spec for spec in outputs)
    return Signature(taken, published(returned), max_batch_size, sizes, returned)


def _rows(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    """Return the one number of rows that all tensors have, or ANY.

    An input of another size than the others has something else there than rows: what one caller sends in it would
    count for the others. Of an output nobody may have said its size.
    """
    rows = inputs[0].shape[inputs[0].batch_dim]
    odd = [spec for spec in inputs if spec.shape[spec.batch_dim] != rows]
    odd += [spec for spec in outputs if spec.shape[spec.batch_dim] not in (rows, ANY)]
    if odd:
        told = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in (inputs[0], *odd))
        raise LoadError(
            f"the batch dimensions of inputs and outputs disagree: {told}; each tensor needs one that counts the"
            " batch's rows: name it (batch_dim) in model.toml, or export the model with what is no rows as a constant"
        )
    return rows


def _check_names(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    if not inputs or not outputs:
        what = "inputs" if not inputs else "outputs"
        raise LoadError(f"the model declares no {what}: set `{what}` on the handler class or in model.toml")
    names = {spec.name for spec in inputs}
    for kind, specs in (("input", inputs), ("output", outputs)):
        name, count = Counter(spec.name for spec in specs).most_common(1)[0]
        if count > 1:
            raise LoadError(f"two {kind}s are called {name!r}")
    ragged = [spec.name for spec in inputs if spec.rows is not None]
    if ragged:
        raise LoadError(f"input {ragged[0]}: rows goes with outputs")
    references = [(spec, "pad_mask", spec.pad_mask) for spec in inputs]
    references += [(spec, "unpad_input", spec.unpad_input) for spec in outputs]
    for spec, key, value in references:
        if value is not None and value not in names:
            raise LoadError(f"tensor {spec.name}: {key} names {value!r}, which is not an input")
