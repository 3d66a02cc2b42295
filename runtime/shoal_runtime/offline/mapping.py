"""Which columns each of the model's inputs is made of, and whether rows can be made of them. Pure.

Columns have names, and so have a model's inputs, or the columns of its one input of numbers: they meet by name,
whatever the order of a file. Only what has no names is taken by its place, and only where the user lists the columns.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import pyarrow as pa

from shoal_runtime.handlers.spec import ANY, TensorSpec
from shoal_runtime.offline.errors import WrongSettings
from shoal_runtime.offline.kinds import (
    is_bytes,
    is_list,
    is_partition,
    is_spelled,
    is_text,
    is_time,
    permuted,
    plain_type,
)
from shoal_runtime.offline.schemas import few
from shoal_runtime.offline.windows import holds_bytes, is_file
from shoal_schema.resource.model import ExtraColumns

JSON: Final = "application/json"
_NUMBERS: Final = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_null,
)
_BOOLS: Final = (pa.types.is_boolean, pa.types.is_null)
_NAMED: Final = (*_NUMBERS, pa.types.is_boolean)
"""In a named column of numbers true and false are 1 and 0, as in pandas."""


def mapped_columns(specs: Sequence[TensorSpec], asked: Mapping[str, str], schema: pa.Schema) -> dict[str, list[str]]:
    """Return the columns of each input, in the order in which the model takes them.

    Args:
        specs: the model's inputs.
        asked: of some inputs the columns, separated by commas.
        schema: of the input's rows.

    Raises:
        WrongSettings: an input has no column, a column is not there, or it stands at another's place.
    """
    known = {spec.name: spec for spec in specs}
    if strange := sorted(set(asked) - set(known)):
        raise WrongSettings(f"the model has no input {strange[0]}: it takes {few(sorted(known))}")
    names = set(schema.names)
    found = {name: _listed(known[name], text, names) for name, text in asked.items()}
    masks = {each.pad_mask for each in specs}
    required = [spec for spec in specs if not spec.optional and spec.name not in masks]
    for spec in specs:
        if spec.name not in found and (own := _own_columns(spec, schema, names)):
            found[spec.name] = own
    missing = [spec for spec in required if spec.name not in found]
    if len(missing) == len(required) == 1 and (only := _only_column(required[0], schema)):
        found[missing[0].name] = [only]
        missing = []
    if missing:
        raise WrongSettings(_which(missing[0], schema, names))
    if absent := [name for columns in found.values() for name in columns if name not in names]:
        raise WrongSettings(f"there is no column {absent[0]}: {_told(schema)}")
    return found


def _listed(spec: TensorSpec, text: str, names: Set[str]) -> list[str]:
    """Return the columns that a user lists for an input.

    Raises:
        WrongSettings: one of the model's own names stands at the place of another.
    """
    listed = [text] if text in names else [part.strip() for part in text.split(",")]
    if len(listed) != len(spec.columns):
        return listed
    if sorted(listed) == sorted(spec.columns):
        return list(spec.columns)
    for place, (given, own) in enumerate(zip(listed, spec.columns, strict=True)):
        if given != own and given in spec.columns:
            raise WrongSettings(
                f"--columns {spec.name}: {given} stands at place {place + 1}, where the model has {own}, and it has a"
                f" column {given} of its own: list the columns in the model's order, {few(spec.columns)}"
            )
    return listed


def _own_columns(spec: TensorSpec, schema: pa.Schema, names: Set[str]) -> list[str]:
    """Return the columns that have the model's names: of one input of numbers all, or the one of the input's name."""
    if spec.columns and names >= set(spec.columns):
        return list(spec.columns)
    if spec.name not in names or (spec.columns and not is_list(plain_type(schema.field(spec.name).type))):
        return []
    return [spec.name]


def _only_column(spec: TensorSpec, schema: pa.Schema) -> str | None:
    """Return the column that can only be the input's: text, bytes or lists; a number's name says something else."""
    fields = [each for each in schema if not is_partition(each)]
    if len(fields) == 1 and (spec.datatype == "BYTES" or is_list(plain_type(fields[0].type))):
        return str(fields[0].name) if spec.logical_type is None else None
    binary = [each.name for each in fields if spec.datatype == "BYTES" and holds_bytes(each.type)]
    return binary[0] if len(binary) == 1 else None


def _which(spec: TensorSpec, schema: pa.Schema, names: Set[str]) -> str:
    """Return which columns an input is missing, and what to do."""
    if spec.columns:
        missing = [name for name in spec.columns if name not in names]
        return (
            f"the input has no column {few(missing)}, which the model reads ({spec.name}). Rename the file's, or say"
            f" --columns {spec.name}=COLUMN,COLUMN,... in the model's order; {_told(schema)}"
        )
    many = "COLUMN,COLUMN,..." if _counts_columns(spec) else "COLUMN"
    hint = (
        ", in the order in which it was trained: it does not know its columns' names" if _counts_columns(spec) else ""
    )
    return (
        f"which column is {spec.name}? Say --columns {spec.name}={many}{hint} (input.columns in a manifest);"
        f" {_told(schema)}"
    )


def _counts_columns(spec: TensorSpec) -> bool:
    return spec.datatype != "BYTES" and len(spec.row_shape) == 1 and spec.pad_axis is None


def _told(schema: pa.Schema) -> str:
    return f"the input has the columns {few(schema.names)}"


def required_columns(specs: Sequence[TensorSpec], columns: Mapping[str, Sequence[str]], schema: pa.Schema) -> list[str]:
    """Return the columns that every table of the input must have: those of inputs that are not optional."""
    needed = dict.fromkeys(name for spec in specs if not spec.optional for name in columns.get(spec.name, ()))
    return [name for name in needed if not is_partition(schema.field(name))]


def check_extra(policy: ExtraColumns, schema: pa.Schema, read: Iterable[str]) -> None:
    """Refuse columns that nothing reads, where the model's extra columns are to be rejected.

    Args:
        policy: of the model; `Auto` ignores them.
        schema: of the input's rows; partitions are no columns of a file.
        read: columns of the model's inputs, and those that the user names.

    Raises:
        WrongSettings: there are some.
    """
    known = set(read)
    extra = [each.name for each in schema if each.name not in known and not is_partition(each)]
    if policy is ExtraColumns.REJECT and extra:
        raise WrongSettings(
            f"{few(extra)}: the model has no such column, and model.extraColumns is Reject. Name it in --keep or"
            " --where if it is meant, or leave it out of the input"
        )


def check_kinds(specs: Sequence[TensorSpec], columns: Mapping[str, Sequence[str]], schema: pa.Schema) -> None:
    """Refuse columns that no row can be made of.

    Raises:
        WrongSettings: says which.
    """
    for spec in specs:
        names = columns.get(spec.name, [])
        for name in names:
            _check_kind(spec, schema.field(name), several=len(names) > 1)
        if len(names) > 1 and list(spec.row_shape) not in ([ANY], [len(names)]):
            raise WrongSettings(f"{spec.name} takes rows of the shape {list(spec.row_shape)}, not {len(names)} columns")


def _check_kind(spec: TensorSpec, column: pa.Field, *, several: bool) -> None:
    if permuted(column.type):
        raise WrongSettings(f"the column {column.name} holds {column.type}: store its dimensions in their own order")
    kind = plain_type(column.type)
    if spec.datatype == "BYTES":
        if several:
            raise WrongSettings(f"{spec.name} takes texts or bytes: name one column for it")
        if not _makes_bytes(spec, kind):
            raise WrongSettings(f"{spec.name} takes {_wanted(spec)}, and the column {column.name} holds {kind}")
        return
    named = not is_list(kind) and (spec.columns if several else list(spec.row_shape) in ([], [1]))
    while is_list(kind):
        kind = kind.value_type
    good = _BOOLS if spec.datatype == "BOOL" else _NAMED if named else _NUMBERS
    if not (is_spelled(column) or any(each(kind) for each in good)):
        raise WrongSettings(f"{spec.name} takes {_wanted(spec)}, and the column {column.name} holds {kind}")


def _makes_bytes(spec: TensorSpec, kind: pa.DataType) -> bool:
    if spec.logical_type == "datetime":
        whole = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        return is_text(kind) or is_time(kind) or pa.types.is_null(kind) or (whole and spec.unit is not None)
    plain = is_text(kind) or is_bytes(kind) or is_time(kind) or pa.types.is_null(kind)
    return JSON in spec.media_types or plain or is_file(kind)


def _wanted(spec: TensorSpec) -> str:
    if spec.logical_type == "datetime":
        return "dates" if spec.unit else "dates, and numbers only where the model declares their unit"
    return {"BYTES": "texts or bytes", "BOOL": "true or false"}.get(spec.datatype, "numbers")
