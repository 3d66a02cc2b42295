"""OpenAPI document of one model, with inputs and outputs as JSON Schema.

Names of tensors may contain any text, so they occur only as values and keys, never in a path.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shoal_proxy.codecs.raw import bytes_input
from shoal_proxy.codecs.tensors import wire_shape
from shoal_proxy.model.signature import InputSpec, ModelSignature, OutputSpec
from shoal_schema.interfaces.headers import PRIORITY, TIMEOUT_MS
from shoal_schema.interfaces.protocols import HTTP, expand
from shoal_schema.wire.datatypes import DTYPES

Json = dict[str, Any]

SAMPLE_LENGTH = 3
"""The size of a free dimension in examples."""
SHOWN_NUMBERS = 64
SAMPLE_TEXT = "a small fish among many"
SAMPLE_DATE = "2024-01-31T12:00:00"
B64 = {"type": "object", "properties": {"b64": {"type": "string"}}, "required": ["b64"], "additionalProperties": False}
NO_JSON = {"not": {}, "description": "JSON cannot express BF16. Send V2 binary data"}
ERRORS = {
    "Error": {
        "type": "object",
        "properties": {"error": {"type": "string"}, "errors": {"type": "array", "items": {"type": "object"}}},
        "required": ["error"],
    },
    "TorchServeError": {
        "type": "object",
        "properties": {"code": {"type": "integer"}, "type": {"type": "string"}, "message": {"type": "string"}},
        "required": ["code", "type", "message"],
    },
}
TERMS: dict[str, Json] = {
    "timeout": {
        "name": TIMEOUT_MS,
        "in": "header",
        "description": "Timeout in milliseconds, after which the response is 504.",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    "priority": {
        "name": PRIORITY,
        "in": "header",
        "description": "Priority from 0, the highest, to 9.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 9},
    },
}


def openapi(signature: ModelSignature, *, name: str, version: str, root: str = ".") -> Json:
    """Return the OpenAPI 3.1 document of the model ``name``.

    ``x-shoal-inputs`` and ``x-shoal-outputs`` list what the page shows. ``root`` is the base of paths, relative to the
    document's own URL, so that it is also correct if a route adds a prefix.
    """
    rows = {"type": "array", "items": _ref("Row"), "minItems": 1, **({} if signature.batches else {"maxItems": 1})}
    v1 = {"type": "object", "properties": {"instances": rows}, "required": ["instances"]}
    predictions = {"type": "object", "properties": {"predictions": {"type": "array", "items": _ref("Answer")}}}
    # By protocol: the schemas of request, response and error; any JSON for other protocols.
    forms: dict[str, tuple[Json, Json, Json]] = {
        "v1": (v1, predictions, _ref("Error")),
        "v2": (_v2_request(signature), {"type": "object"}, _ref("Error")),
        "torchserve": (_ref("Row"), _ref("Answer"), _ref("TorchServeError")),
    }
    # The media types of raw bodies, each of which is one row.
    raw: Json = {}
    if (spec := bytes_input(signature)) is not None and not spec.holds_json:
        raw = {kind: {"schema": {}} for kind in spec.content_types or ("application/octet-stream",)}
    infer = {
        each.infer_paths[0].format(model=name): {"post": _infer(each.title, raw, *forms.get(each.label, ({}, {}, {})))}
        for each in HTTP.protocols
        if each.any_model
    }
    summaries = {expand(page.path)[0].format(model=name, id="{id}"): page.summary for page in HTTP.pages}
    summaries |= {check.path: check.summary for check in HTTP.checks}
    pages = {path: {"get": {"summary": text, "responses": _ok(text)}} for path, text in summaries.items() if text}
    # Descriptions of the page's fields, one per input.
    fields: list[Json] = []
    for each in signature.inputs.values():
        element = each.datatype == "BYTES" and not each.holds_json and prod(_sample_shape(each, signature)) == 1
        texts = bool(each.content_types) and all(kind.startswith("text/") for kind in each.content_types)
        texts = texts or each.logical_type == "datetime"
        fields.append({
            "name": each.name,
            "datatype": each.datatype,
            "optional": each.optional,
            "columns": list(each.columns) if signature.columns else [],
            "nullable": each.nullable,
            "kind": ("text" if texts else "file") if element else "json",
            "media": list(each.content_types),
            "shape": [] if each.holds_json else list(_row_shape(each, signature)),
            "element": _sample_element(each),
        })  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": version, "description": "A model, in every protocol that it supports."},
        "servers": [{"url": root}],
        "paths": {**infer, **pages},
        "components": {
            "schemas": {"Row": row_schema(signature), "Answer": answer_schema(signature), **ERRORS},
            "parameters": TERMS,
        },
        "x-shoal-inputs": fields,
        "x-shoal-outputs": [
            {
                "name": each.name,
                "datatype": each.datatype,
                "media": [each.content_type] if each.datatype == "BYTES" and each.content_type else [],
                "shape": list(_row_shape(each, signature)),
            }
            for each in signature.outputs.values()
        ],
        "x-shoal-batches": signature.batches,
    }


def row_schema(signature: ModelSignature) -> Json:
    """Return the JSON schema of an input row: an object, or a single value."""
    inputs = signature.inputs.values()
    required = [spec for spec in inputs if not spec.optional]
    by_input = {spec.name: _input_schema(spec, signature) for spec in inputs}
    forms = [_object(by_input, [spec.name for spec in required])]
    if len(required) == 1:
        value = _input_schema(required[0], signature)
        forms = [value] if len(signature.inputs) == 1 else [value, *forms]
    if signature.columns:
        # An object in which an input's columns have their own names.
        properties: dict[str, Json] = {}
        for spec in inputs:
            one = {name: _input_element(spec) for name in spec.columns}
            properties.update(one or {spec.name: by_input[spec.name]})
        names = [name for spec in required for name in (spec.columns or (spec.name,))]
        by_column = _object(properties, names)
        if len(names) <= SHOWN_NUMBERS and not any(spec.datatype == "BF16" for spec in required):
            by_column["examples"] = [sample_row(required, signature)]
        forms = [by_column, *forms]
    if len(forms) == 1:
        return forms[0]
    # With several inputs, a row may match more than one form.
    return {"oneOf" if len(signature.inputs) == 1 else "anyOf": forms}


def _object(properties: dict[str, Json], required: Sequence[str]) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def sample_row(required: Sequence[InputSpec], signature: ModelSignature) -> Json:
    """Return an example of an input row, as an object by column name."""
    row: Json = {}
    for spec in required:
        columns = dict.fromkeys(spec.columns, _sample_element(spec))
        row.update(columns or {spec.name: sample(spec, signature)})
    return row


def answer_schema(signature: ModelSignature) -> Json:
    """Return the JSON schema of one result row: an output, or an object."""
    outputs: dict[str, Json] = {}
    for spec in signature.outputs.values():
        element: Json
        if spec.datatype == "BYTES":
            element = {} if spec.content_type == "application/json" else {"anyOf": [{"type": "string"}, B64]}
        elif spec.datatype == "BOOL":
            element = {"type": "boolean"}
        elif spec.datatype != "BF16" and DTYPES[spec.datatype].kind in "iu":
            element = {"type": "integer"}
        else:
            # NaN and infinities, which JSON does not have, are null.
            element = {"type": ["number", "null"]}
        outputs[spec.name] = _nested(_row_shape(spec, signature), element)
    if len(outputs) == 1:
        return next(iter(outputs.values()))
    return {"type": "object", "properties": outputs, "required": list(outputs)}


def sample(spec: InputSpec, signature: ModelSignature) -> Any:
    """Return an example value of an input; variable dimensions have size 3."""
    value = _sample_element(spec)
    for size in reversed(_sample_shape(spec, signature)):
        value = [value] * size
    return value


def _input_schema(spec: InputSpec, signature: ModelSignature) -> Json:
    if spec.holds_json:
        # Each row is one JSON value, whatever the shape.
        return {"description": "any JSON value"}
    schema = _nested(_row_shape(spec, signature), _input_element(spec))
    # Longer examples would dominate the document.
    small = prod(_sample_shape(spec, signature)) <= SHOWN_NUMBERS and spec.datatype != "BF16"
    return {**schema, "examples": [sample(spec, signature)]} if small else schema


def _nested(shape: Sequence[int], element: Json) -> Json:
    for size in reversed(shape):
        bounds = {"minItems": size, "maxItems": size} if size >= 0 else {}
        element = {"type": "array", "items": element, **bounds}
    return element


def _input_element(spec: InputSpec) -> Json:
    if spec.datatype == "BYTES":
        null = [{"type": "null"}] if spec.nullable else []
        if spec.logical_type != "datetime":
            return {"anyOf": [{"type": "string"}, B64, *null]}
        text = {"type": "string", "format": "date-time"}
        since = f"{spec.unit} since 1970-01-01T00:00:00Z"
        numbers = [{"type": "integer", "description": since}] if spec.unit else []
        return {"anyOf": [text, *numbers, *null]} if numbers or null else text
    if spec.datatype == "BF16":
        return NO_JSON
    if spec.datatype == "BOOL":
        return {"type": "boolean"}
    if DTYPES[spec.datatype].kind not in "iu":
        return {"type": ["number", "null"] if spec.nullable else "number"}
    limits = np.iinfo(DTYPES[spec.datatype])
    return {"type": "integer", "minimum": int(limits.min), "maximum": int(limits.max)}


def _row_shape(spec: InputSpec | OutputSpec, signature: ModelSignature) -> tuple[int, ...]:
    return spec.shape[1:] if signature.batches else spec.shape


def _sample_shape(spec: InputSpec, signature: ModelSignature) -> list[int]:
    if spec.holds_json:
        return []
    return [SAMPLE_LENGTH if size < 0 else size for size in _row_shape(spec, signature)]


def _sample_element(spec: InputSpec) -> Any:
    if spec.datatype == "BYTES":
        text = SAMPLE_DATE if spec.logical_type == "datetime" else SAMPLE_TEXT
        return {} if spec.holds_json else spec.example or text
    if spec.datatype == "BOOL":
        return True
    return 1 if "INT" in spec.datatype else 0.5


def _v2_request(signature: ModelSignature) -> Json:
    required = [spec for spec in signature.inputs.values() if not spec.optional]
    small = sum(prod(_sample_shape(spec, signature)) for spec in required) <= SHOWN_NUMBERS
    examples = []
    for spec in required if small else ():
        row = [1] * len(_row_shape(spec, signature)) if spec.holds_json else _sample_shape(spec, signature)
        examples.append({
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": wire_shape(spec, [1, *row]) if signature.batches else row,
            "data": ["{}" if spec.holds_json else _sample_element(spec)] * prod(row),
        })  # fmt: skip
    tensors = []
    for spec in signature.inputs.values():
        sizes = [{"const": size} if size >= 0 else {"type": "integer"} for size in wire_shape(spec, spec.shape)]
        tensors.append({
            "type": "object",
            "properties": {
                "name": {"const": spec.name},
                "datatype": {"const": spec.datatype},
                "shape": {"type": "array", "prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)},
                "data": {"type": "array", "description": "nested or flat, in row-major order"},
                "parameters": {"type": "object"},
            },
            "required": ["name", "datatype", "shape"],
        })  # fmt: skip
    inputs = {"type": "array", "items": {"anyOf": tensors}}
    return {
        "type": "object",
        "properties": {"id": {"type": "string"}, "inputs": inputs},
        "required": ["inputs"],
        **({"examples": [{"inputs": examples}]} if small else {}),
    }


def _infer(protocol: str, raw: Json, request: Json, answer: Json, error: Json) -> Json:
    return {
        "summary": f"Infer ({protocol})",
        "parameters": [{"$ref": f"#/components/parameters/{term}"} for term in TERMS],
        "requestBody": {"required": True, "content": {**_json(request), **raw}},
        "responses": {
            "200": {"description": "the result", "content": _json(answer)},
            "default": {"description": "the error", "content": _json(error)},
        },
    }


def _ok(what: str) -> Json:
    return {"200": {"description": what, "content": _json({"type": "object"})}}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
