"""What a format is given, and what it gives back."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.mixing import Mixed
from shoal_runtime.handlers.base import Context, Handler
from shoal_runtime.handlers.ragged import UNEVEN_REMEDY
from shoal_runtime.handlers.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import DTYPES

MAX_JSON_BYTES: Final = 16 * 2**20
"""Of names and numbers, vocabularies lie beside it: more than any model's."""
TRANSFORMERS_CONFIG: Final = "config.json"
_REQUIRED: Final = object()

logger = logging.getLogger(__name__)


class NotTrusted(LoadError):
    """The file holds what could run; who trusts it may say so."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"{name} holds {what}, for which a program that only computes has no use, and which could run code or"
            " reach files: export the model again, or set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you"
            " trust it"
        )


class Unreadable(LoadError):
    """The file is not what its name says, or not whole; ``why`` is what its library says first."""

    def __init__(
        self, name: str, kind: str, why: object, remedy: str = "copy it here again, or export it again"
    ) -> None:
        [first, *_] = str(why).strip().splitlines() or [type(why).__name__]
        first = first.partition(". ")[0].rstrip(".")
        super().__init__(f"{name} is not a readable {kind}: {first}; {remedy}")


def first_bytes(path: Path) -> bytes:
    """Return how a file begins."""
    with path.open("rb") as file:
        return file.read(64)


def oddity(path: Path) -> str:
    """Return what a file is that its library cannot read, where its first bytes tell; empty where they do not."""
    head = first_bytes(path).strip().lower()
    if not head:
        return "it is empty"
    page = head.startswith((b"<!doctype html", b"<html"))
    return "it is a web page, as of a sign-in or of an error, in the model's place" if page else ""


@dataclass(frozen=True, slots=True)
class Source:
    """One model's files and what is known about them.

    Args:
        directory: where they lie.
        file: the one to load, when somebody said so.
        handler: the class that goes with it: the handler, or the module for weights.
        context: device, dtype, parameters.
        inputs, outputs: from model.toml; empty when it says nothing.
        allow_pickle: whether the user opted in to pickles.
        trusted_types: that a skops file may hold, as the user says.
        told_outputs: as a file beside the model tells them; for models that cannot tell, nor show, their own.
        max_body_bytes: of a request, and so of a row.
    """

    directory: Path
    file: Path | None
    handler: type[Any] | None
    context: Context
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    allow_pickle: bool
    trusted_types: Sequence[str] = ()
    told_outputs: Sequence[TensorSpec] = ()
    max_body_bytes: int = 2**30

    def declared(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Return the inputs and outputs that model.toml declares, or else the class."""
        inputs = self.inputs or getattr(self.handler, "inputs", ())
        return tuple(inputs), tuple(self.outputs or getattr(self.handler, "outputs", ()))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory.

    Args:
        handler: on its device, ready to be called.
        inputs, outputs: its signature, as far as it is known.
        platform: for the metadata.
        min_rows, max_rows: fewest and most that it runs with; None when it says nothing.
        graphs: whether its forward may be captured in CUDA graphs: it depends on nothing but its inputs.
        forward_timeout_s: how long a forward may take where the user does not say; None when it says nothing.
        rows_proven: whether each output is proven to have one row for each of the batch's; their order is not.
    """

    handler: Handler
    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    platform: str
    min_rows: int = 1
    max_rows: int | None = None
    graphs: bool = False
    forward_timeout_s: float | None = None
    rows_proven: bool = False


def rows_are_proven(source: Source, inputs: Sequence[TensorSpec], selected: Mapping[str, str | None]) -> bool:
    """Return whether each output has a row for each of the batch's; where some are ragged, nothing is proven.

    Args:
        source: of the model, whose ragged outputs are grouped by row whatever they hold.
        inputs: the model's; with one row at a time no client's row can be taken for another's.
        selected: by output, what selects its items (`NonZero`...); empty: nothing, it is proven; None: not known.

    Raises:
        LoadError: an output has as many items as the numbers in the batch select, and they are not declared ragged.
    """
    ragged = _ragged(source)
    for name, what in selected.items():
        if what and name not in ragged and _has_several(source, inputs):
            raise LoadError(
                f"output {name} has as many items as {what} selects in the whole batch: a row may have none or several,"
                f" and position does not identify them; {UNEVEN_REMEDY}"
            )
    return not ragged and all(what == "" for what in selected.values())


def refuse_mixed(source: Source, inputs: Sequence[TensorSpec], mixed: Mapping[str, Mixed]) -> None:
    """Refuse a model with several rows in a batch if an output's rows are proven to depend on other rows.

    Args:
        source: of the model, whose ragged outputs are left to the trials.
        inputs: the model's.
        mixed: outputs, each with the node that mixes rows.

    Raises:
        LoadError: it names the node.
    """
    ragged = _ragged(source)
    for name, found in mixed.items():
        if name not in ragged and _has_several(source, inputs):
            raise LoadError(
                f"the rows of a batch change each other's answers: output {name} depends on {found.by}, which"
                f" {found.how.value}; export the model so that it computes each row by itself, name the dimension that"
                " counts the rows (batch_dim) in model.toml if it is another, or serve one row at a time with"
                " SHOAL_BATCHING_MAX_BATCH_SIZE=1 (batching.maxBatchSize: 1)"
            )


def _ragged(source: Source) -> set[str]:
    """Return the ragged outputs, and those that hold the rows of their items."""
    indices = {spec.row_index for spec in source.outputs}
    return {spec.name for spec in source.outputs if spec.rows is not None or spec.name in indices}


def _has_several(source: Source, inputs: Sequence[TensorSpec]) -> bool:
    """Return whether a batch may have several rows."""
    rows = inputs[0].shape[inputs[0].batch_dim]
    return rows > 1 or (rows == ANY and source.context.max_batch_size > 1)


def check_row(spec: TensorSpec, max_body_bytes: int) -> None:
    """Raise LoadError where no request can hold a row: warm-up would tell it as a lack of memory."""
    elements = math.prod(size for size in spec.row_shape if size != ANY)
    # Of bytes the length alone, which precedes each element.
    row_bytes = elements * (4 if spec.datatype == "BYTES" else DTYPES[spec.datatype].itemsize)
    if row_bytes > max_body_bytes:
        raise LoadError(
            f"input {spec.name}: a row of shape {list(spec.row_shape)} has {row_bytes} bytes, more than a request may"
            f" (SHOAL_RUNTIME_MAX_BODY_BYTES={max_body_bytes}): correct the shape that it declares"
        )


def find_file(source: Source, suffixes: Sequence[str], holds: Callable[[Path], bool] = Path.is_file) -> Path:
    """Return the model's one file with one of these suffixes that ``holds`` what it should.

    Raises:
        LoadError: there is none, or more than one.
    """
    if source.file is not None:
        if not source.file.is_file():
            raise LoadError(f"there is no file {source.file}")
        return source.file
    found = [path for path in files_with(source.directory, suffixes) if holds(path)]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise LoadError(
            f"{source.directory} must hold one {' or '.join(suffixes)} file (found: {names});"
            " name it as `file` in model.toml"
        )
    return found[0]


def files_with(directory: Path, suffixes: Sequence[str] | None = None) -> list[Path]:
    """Return the directory's files, sorted, that have one of these suffixes, if any are given."""
    return sorted(p for p in directory.iterdir() if (suffixes is None or p.suffix in suffixes) and p.is_file())


def check_static_batch(source: Source, name: str, inputs: Sequence[TensorSpec], remedy: str) -> None:
    """Log what to do about a model that takes batches of one size only; it is served with that size.

    Raises:
        LoadError: it may be no batch: another dimension takes any size, and nobody has said which one counts rows.
    """
    rows = inputs[0].shape[inputs[0].batch_dim]
    if rows == ANY or any(spec.shape[spec.batch_dim] != rows for spec in inputs):
        return
    free = [spec for spec in inputs if ANY in spec.row_shape]
    if rows > 1 and free and not source.inputs:
        raise LoadError(
            f"{name} takes {free[0].name} as {list(free[0].shape)}: if its first dimension counts rows, {remedy}; if"
            " another does, say so in model.toml (batch_dim of [[inputs]] and [[outputs]])"
        )
    logger.warning(
        "event=static_batch message=%s was exported with a batch of %d, so it runs %d at a time: %s",
        name,
        rows,
        rows,
        remedy,
    )


def read_json(path: Path, default: Any = _REQUIRED) -> Any:
    """Return what a JSON file holds, of the default's type; the default where there is no file.

    Raises:
        LoadError: it is missing without a default, too large, no JSON, or something else than the default.
    """
    try:
        if not path.is_file():
            if default is _REQUIRED:
                raise LoadError(f"there is no file {path}")
            return default
        if path.stat().st_size > MAX_JSON_BYTES:
            raise LoadError(f"{path} is over {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict if default is _REQUIRED else type(default)):
        raise LoadError(f"{path} holds a {type(value).__name__}")
    return value


def is_transformers(directory: Path) -> bool:
    """Return whether a folder is one that transformers wrote: its config.json names the kind of model."""
    try:
        return "model_type" in read_json(directory / TRANSFORMERS_CONFIG, {})
    except LoadError:
        return False
