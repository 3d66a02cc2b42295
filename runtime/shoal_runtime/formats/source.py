"""Arguments and results of each format's `load`, and checks that several formats share."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.library_device import LibraryDevice
from shoal_runtime.formats.row_values import MixedRows
from shoal_runtime.handlers.base import Context, Handler
from shoal_runtime.signature.ragged import UNEVEN_REMEDY
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import DTYPES

MAX_JSON_BYTES: Final = 16 * 2**20
"""Maximum of configuration files; vocabularies are other files."""
TRANSFORMERS_CONFIG: Final = "config.json"
_REQUIRED: Final = object()

logger = logging.getLogger(__name__)


class UntrustedFile(LoadError):
    """A model file could run code, and the user has not allowed pickles."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"{name} holds {what}, which could run code or access files. Export the model again, or set "
            "SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you"
            " trust it"
        )


class UnreadableFile(LoadError):
    """A model file is corrupt or of another format; `why` is the library's error."""

    def __init__(
        self, name: str, kind: str, why: object, remedy: str = "Copy it here again, or export it again"
    ) -> None:
        # Only the first sentence, since libraries append stack traces and advice for developers.
        [first, *_] = str(why).strip().splitlines() or [type(why).__name__]
        first = first.partition(". ")[0].rstrip(".")
        super().__init__(f"{name} is not a readable {kind}: {first}. {remedy}")


def first_bytes(path: Path) -> bytes:
    """Return the first 64 bytes of a file."""
    with path.open("rb") as file:
        return file.read(64)


def unreadable_reason(path: Path) -> str:
    """Return why a file is unreadable if its first bytes show the reason, else an empty text."""
    head = first_bytes(path).strip().lower()
    if not head:
        return "it is empty"
    # A download that redirects to a login or error page stores that page.
    page = head.startswith((b"<!doctype html", b"<html"))
    return "it is a web page, such as a login or error page" if page else ""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Files and description of a model to load: the argument of each format's `load`."""

    directory: Path
    """Directory of the model."""
    file: Path | None
    """File to load, if model.toml or the settings name it."""
    handler: type[Any] | None
    """Handler class, or module class of weights."""
    context: Context
    """Device, dtype and parameters."""
    inputs: Sequence[TensorSpec]
    """Inputs in model.toml, or empty."""
    outputs: Sequence[TensorSpec]
    """Outputs in model.toml, or empty."""
    allow_pickle: bool
    """Whether the user allows pickles."""
    trusted_types: Sequence[str] = ()
    """Types in a skops file that the user trusts."""
    described_outputs: Sequence[TensorSpec] = ()
    """Outputs in a file beside the model, for models that cannot name their outputs or predict example rows."""
    max_body_bytes: int = 2**30
    """Maximum size of a request, and so of a row."""
    tensorrt: bool = False
    """Whether an ONNX model runs with TensorRT."""
    cache_dir: Path | None = None
    """Cache of the runtime, for compiled code."""
    code_key: str = ""
    """Digest of the files, for compiled code."""

    def declared(self) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Return the inputs and outputs declared in model.toml, or else by the handler class."""
        inputs = self.inputs or getattr(self.handler, "inputs", ())
        return tuple(inputs), tuple(self.outputs or getattr(self.handler, "outputs", ()))


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model: handler, signature and batch limits. The result of each format's `load`."""

    handler: Handler
    """On its device, ready for calls."""
    inputs: Sequence[TensorSpec]
    """Inputs, as far as they are known."""
    outputs: Sequence[TensorSpec]
    """Outputs, as far as they are known."""
    platform: str
    """Platform in the metadata."""
    min_rows: int = 1
    """Minimum rows of a batch."""
    max_rows: int | None = None
    """Maximum rows of a batch, or None without a limit in the file."""
    graphs: bool = False
    """Whether CUDA graphs may capture forward, because it depends only on its inputs."""
    forward_timeout_s: float | None = None
    """Timeout of a forward unless the user sets one; None without a value in the file."""
    rows_proven: bool = False
    """Whether each output is proven to have one row per row of the batch; their order is not proven."""
    device: LibraryDevice | None = None
    """Device that a library without PyTorch has chosen; None: the CPU, or that of torch."""


def rows_are_proven(source: ModelSource, inputs: Sequence[TensorSpec], selected: Mapping[str, str | None]) -> bool:
    """Return whether each output provably has one row per row of the batch.

    Args:
        source: model. If it has ragged outputs (any number of items per row), the result is False.
        inputs: the model's inputs, which determine whether a batch can have several rows.
        selected: by output name, the operator that selects its items, such as NonZero; "" for none, None if unknown.

    Raises:
        LoadError: an operator selects the items of an output that is not declared ragged.
    """
    ragged = _ragged(source)
    for name, what in selected.items():
        if what and name not in ragged and _has_several(source, inputs):
            raise LoadError(
                f"output {name} has as many items as {what} selects in the whole batch. A row may have none or "
                f"several, so their position does not identify the row; {UNEVEN_REMEDY}"
            )
    return not ragged and all(what == "" for what in selected.values())


def reject_mixed_rows(source: ModelSource, inputs: Sequence[TensorSpec], mixed: Mapping[str, MixedRows]) -> None:
    """Reject a model whose outputs provably mix rows of a batch.

    Args:
        source: model; its ragged outputs are tested in warm-up instead.
        inputs: the model's inputs. If batches have only one row, the model is not rejected.
        mixed: outputs that mix rows, with the node that mixes them.

    Raises:
        LoadError: an output mixes rows; the message names the node.
    """
    ragged = _ragged(source)
    for name, found in mixed.items():
        if name not in ragged and _has_several(source, inputs):
            raise LoadError(
                f"the rows of a batch affect each other's results: output {name} depends on {found.by}, which"
                f" {found.how.value}. Export the model so that it computes each row separately, set batch_dim in"
                " model.toml if another dimension counts the rows, or serve one row at a time with"
                " SHOAL_BATCHING_MAX_BATCH_SIZE=1 (batching.maxBatchSize: 1)"
            )


def _ragged(source: ModelSource) -> set[str]:
    """Return the names of ragged outputs and of their row numbers.

    A ragged output has any number of items per row; another output may hold the row number of each of these items.
    """
    indices = {spec.row_index for spec in source.outputs}
    return {spec.name for spec in source.outputs if spec.rows is not None or spec.name in indices}


def _has_several(source: ModelSource, inputs: Sequence[TensorSpec]) -> bool:
    rows = inputs[0].shape[inputs[0].batch_dim]
    return rows > 1 or (rows == ANY and source.context.max_batch_size > 1)


def check_row(spec: TensorSpec, max_body_bytes: int) -> None:
    """Raise LoadError if one row of an input is too large for any request."""
    elements = math.prod(size for size in spec.row_shape if size != ANY)
    # A BYTES element has at least its length of 4 bytes.
    row_bytes = elements * (4 if spec.datatype == "BYTES" else DTYPES[spec.datatype].itemsize)
    if row_bytes > max_body_bytes:
        raise LoadError(
            f"input {spec.name}: a row of shape {list(spec.row_shape)} has {row_bytes} bytes, more than a request may"
            f" have (SHOAL_RUNTIME_MAX_BODY_BYTES={max_body_bytes}). Correct the declared shape"
        )


def find_file(source: ModelSource, suffixes: Sequence[str], holds: Callable[[Path], bool] = Path.is_file) -> Path:
    """Return the only file of a model that has one of the suffixes and satisfies `holds`.

    Raises:
        LoadError: there is no such file, or more than one.
    """
    if source.file is not None:
        if not source.file.is_file():
            raise LoadError(f"there is no file {source.file}")
        return source.file
    # Ambiguity is an error, so that a file added later cannot change which model is served.
    found = [path for path in files_with(source.directory, suffixes) if holds(path)]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise LoadError(
            f"{source.directory} must hold one {' or '.join(suffixes)} file (found: {names}). Set `file` in model.toml"
        )
    return found[0]


def files_with(directory: Path, suffixes: Sequence[str] | None = None) -> list[Path]:
    """Return a directory's files, sorted; with ``suffixes``, only files with one of these."""
    return sorted(p for p in directory.iterdir() if (suffixes is None or p.suffix in suffixes) and p.is_file())


def check_static_batch(source: ModelSource, name: str, inputs: Sequence[TensorSpec], remedy: str) -> None:
    """Warn about a model with a fixed batch size, which is served in batches of this size.

    Raises:
        LoadError: another dimension is dynamic, and model.toml does not state which dimension counts rows.
    """
    rows = inputs[0].shape[inputs[0].batch_dim]
    if rows == ANY or any(spec.shape[spec.batch_dim] != rows for spec in inputs):
        return
    free = [spec for spec in inputs if ANY in spec.row_shape]
    # With one row no dimension is ambiguous: batches are padded to it.
    if rows > 1 and free and not source.inputs:
        raise LoadError(
            f"{name} takes {free[0].name} as {list(free[0].shape)}. If its first dimension counts rows, {remedy}; if"
            " another does, set batch_dim of [[inputs]] and [[outputs]] in model.toml"
        )
    logger.warning(
        "event=static_batch message=%s has a fixed batch of %d, so it runs %d rows at a time: %s",
        name,
        rows,
        rows,
        remedy,
    )


def read_json(path: Path, default: Any = _REQUIRED) -> Any:
    """Read a JSON file, and check the type of its value.

    Args:
        path: file.
        default: value to return if there is no file. Its type is the required type; without a default, that is dict.

    Raises:
        LoadError: the file is missing without a default, too large, not JSON, or of another type.
    """
    try:
        if not path.is_file():
            if default is _REQUIRED:
                raise LoadError(f"there is no file {path}")
            return default
        if path.stat().st_size > MAX_JSON_BYTES:
            raise LoadError(f"{path} exceeds {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict if default is _REQUIRED else type(default)):
        raise LoadError(f"{path} must not hold a {type(value).__name__}")
    return value


def is_transformers(directory: Path) -> bool:
    """Return whether a directory's config.json has a `model_type`, as transformers writes it."""
    try:
        return "model_type" in read_json(directory / TRANSFORMERS_CONFIG, {})
    except LoadError:
        return False
