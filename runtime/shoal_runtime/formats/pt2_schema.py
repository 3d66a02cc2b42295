"""Checks of the JSON documents in a `.pt2` archive against torch's schema.

Torch trusts these documents: it evaluates sizes and guards, writes names into Python source, imports containers by
name, and looks up any operator name. Here a document is copied field by field as the schema declares, and each text
must satisfy a rule. A field that is not in the schema is dropped; a text without a rule must be an identifier.
"""

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final

from torch._export.serde import schema
from torch._export.serde.union import _Union

from shoal_runtime.formats.expressions import KEY, SYMBOL, checked_guard, checked_size
from shoal_runtime.formats.operators import may_call

MAX_BITS: Final = 65
CONTAINERS: Final = frozenset({"builtins.tuple", "builtins.list", "torch.Size"})
MAPPINGS: Final = frozenset({"builtins.dict", "collections.OrderedDict"})
_NOT_FINITE: Final = ("Infinity", "-Infinity", "NaN")


def checked_program(document: bytes) -> bytes:
    """Return `models/model.json` after a check that nothing in it can run code.

    Raises:
        ValueError: the document holds more than a program that only computes.
    """
    return _rewritten(schema.ExportedProgram, document)


def checked_payloads(document: bytes, prefix: str) -> bytes:
    """Return the document that lists a program's weights or constants, after a check.

    Raises:
        ValueError: an entry is a pickle, or its record does not begin with ``prefix``.
    """
    rewritten = _rewritten(schema.PayloadConfig, document)
    for name, payload in json.loads(rewritten)["config"].items():
        if payload.get("use_pickle") or not payload["path_name"].startswith(prefix):
            raise ValueError(f"a pickle, {name}")
    return rewritten


def checked_key(key: object) -> None:
    """Check a key of a dict of inputs or outputs.

    Raises:
        ValueError: the key is neither an integer nor a plain name.
    """
    if not isinstance(key, int) and not (isinstance(key, str) and KEY.fullmatch(key)):
        raise ValueError(f"the key {key!r}")


def _rewritten(cls: type, document: bytes) -> bytes:
    try:
        return json.dumps(_value(cls, json.loads(document), "")).encode()
    except RecursionError:
        raise ValueError("nesting that is too deep") from None
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"a document that differs from torch's schema: {type(error).__name__}: {error}") from None


def _value(cls: Any, data: Any, field: str) -> Any:
    """Copy `data` as the type `cls` of the schema; texts must satisfy the rule of `field`."""
    origin = typing.get_origin(cls)
    if origin is typing.Annotated:
        return _value(cls.__origin__, data, field)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else _value(typing.get_args(cls)[0], data, field)
    if origin is list:
        (element,) = typing.get_args(cls)
        return [_value(element, each, field) for each in _typed(data, list, field)]
    if origin is dict:
        _, element = typing.get_args(cls)
        rule = _KEY_RULES.get(field, _name)
        return {rule(key): _value(element, each, field) for key, each in _typed(data, dict, field).items()}
    if dataclasses.is_dataclass(cls):
        return _object(cls, _typed(data, dict, field))
    if cls is str:
        return _RULES.get(field, _name)(_typed(data, str, field))
    if cls is bool:
        return _typed(data, bool, field)
    if cls is float and (data in _NOT_FINITE or (isinstance(data, int | float) and not isinstance(data, bool))):
        return data
    whole = isinstance(data, int) and not isinstance(data, bool) and data.bit_length() <= MAX_BITS
    if whole and (cls is int or issubclass(cls, IntEnum)):
        return data
    raise ValueError(f"a {type(data).__name__} as {field}")


def _object(cls: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    if cls is schema.CustomObjArgument:
        raise ValueError("a custom object")
    hints = _hints(cls)
    if issubclass(cls, _Union) and (len(data) != 1 or next(iter(data)) not in hints):
        raise ValueError(f"an unknown {cls.__name__}")
    copied = {}
    for name, hint in hints.items():
        field = f"{cls.__name__}.{name}"
        if name in data:
            # Torch looks up names in the source positions, which are not needed.
            copied[name] = {} if field in _DROPPED else _value(hint, data[name], field)
    if cls is schema.Graph:
        for each in copied["inputs"]:
            _plain(each.get("as_string", ""))
    return copied


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls, globalns=vars(schema))
    return {each.name: hints[each.name] for each in dataclasses.fields(cls)}


def _typed(data: Any, cls: type, field: str) -> Any:
    if not isinstance(data, cls):
        raise ValueError(f"a {type(data).__name__} as {field}")
    return data


# Rules of texts, which return the text or raise ValueError.

Rule = Callable[[str], str]


def _held_to(what: str, allowed: Callable[[str], object]) -> Rule:
    def rule(text: str) -> str:
        if not allowed(text):
            raise ValueError(f"the {what} {text if len(text) <= 100 else text[:97] + '...'!r}")
        return text

    return rule


# A name becomes a variable of the module that torch writes.
_name = _held_to("name", lambda text: not text or text.isidentifier())
# A path of a parameter becomes attributes.
_path = _held_to("path", re.compile(r"(?!__)(?!.*\.__)[\w.:/@+ -]{0,1024}").fullmatch)
_operator = _held_to("operator", may_call)
_record = _held_to("record", re.compile(r"[\w-]{1,128}(\.pt)?").fullmatch)
# The symbol or expression of a range; torch counts up to the number of an unbacked symbol, u0 or z0.
_range = _held_to("range", re.compile(rf"{SYMBOL.pattern}|(?![uz])[\w +*/%(),.-]{{1,4096}}").fullmatch)
_dialect = _held_to("dialect", {"", "ATEN", "TRAINING"}.__contains__)
_plain = _held_to("constant", re.compile(r"""[^'"\\{}\x00-\x1f\x7f]{0,4096}""").fullmatch)
# An operator's argument, which torch writes with `repr`.
_free = str


def _tree(text: str) -> str:
    """Check and normalize the nested structure (pytree) of inputs or outputs."""
    try:
        protocol, tree = json.loads(text)
    except ValueError:
        raise ValueError("a nesting that is not JSON") from None
    return json.dumps([_typed(protocol, int, "nesting"), _branch(tree, depth=0)])


def _branch(tree: Mapping[str, Any], *, depth: int) -> dict[str, Any]:
    kind, context, children = tree["type"], tree["context"], _typed(tree["children_spec"], list, "nesting")
    known = kind in CONTAINERS and context in ("null", None)
    if kind in MAPPINGS:
        keys = _typed(json.loads(context), list, "nesting")
        for key in keys:
            # Keys of the outermost dict are arguments, whose names the module uses.
            _name(_typed(key, str, "nesting")) if depth == 1 else checked_key(key)
        known = len(keys) == len(children)
    if not known and not (kind is None and context is None and not children):
        raise ValueError(f"the container {str(kind)[:100]!r}")
    copied = [_branch(child, depth=depth + 1) for child in children]
    return {"type": kind, "context": context, "children_spec": copied}


_RULES: Final[Mapping[str, Rule]] = {
    "SymExpr.expr_str": checked_size,
    "ExportedProgram.guards_code": checked_guard,
    "ExportedProgram.verifiers": _dialect,
    "ExportedProgram.torch_version": _plain,
    "Node.target": _operator,
    "Argument.as_operator": _operator,
    "Argument.as_string": _free,
    "Argument.as_strings": _free,
    "ConstantValue.as_string": _plain,
    "ModuleCallSignature.in_spec": _tree,
    "ModuleCallSignature.out_spec": _tree,
    "ModuleCallEntry.fqn": _path,
    "InputToParameterSpec.parameter_name": _path,
    "InputToBufferSpec.buffer_name": _path,
    "InputToTensorConstantSpec.tensor_constant_name": _path,
    "BufferMutationSpec.buffer_name": _path,
    "ParameterMutationSpec.parameter_name": _path,
    "GradientToParameterSpec.parameter_name": _path,
    "PayloadMeta.path_name": _record,
}
_KEY_RULES: Final[Mapping[str, Rule]] = {"ExportedProgram.range_constraints": _range, "PayloadConfig.config": _path}
_DROPPED: Final = frozenset({"Node.metadata", "GraphModule.metadata", "GraphModule.treespec_namedtuple_fields"})
