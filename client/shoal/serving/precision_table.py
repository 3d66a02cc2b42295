"""Present a runtime's measurement of precisions for ``shoal inspect --precision``."""

from collections.abc import Mapping
from typing import Any

from shoal.printing import table
from shoal.serving.inspection import SIZES, amount
from shoal_schema.fields.redaction import visible
from shoal_schema.process.field_names import with_field_names

_NOTHING = "-"
_OWN = "(file)"
"""Shown in place of Float32 for a model that keeps the dtype of its file."""


def with_names(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report of ``python -m shoal_runtime precision`` with field names in its messages."""
    named = {**report, "warnings": [with_field_names(each) for each in report["warnings"]]}
    if named["refused"] is not None:
        named["refused"] = with_field_names(named["refused"])
    named["precisions"] = [
        {**each, "failure": each["failure"] and with_field_names(each["failure"])} for each in named["precisions"]
    ]
    return named


def precision_text(report: Mapping[str, Any]) -> str:
    """Return a report of `with_names` as tables of speed and of error, with what was not measured below."""
    rows, measured = report["rows"], [each for each in report["precisions"] if not each["failure"]]
    parts = [f"{report['name']}: {_rows_text(rows)}, on {report['device']}"]
    if report["reference"] != "Float32":
        measured = [{**each, "precision": _OWN} if each["precision"] == "Float32" else each for each in measured]
        parts.append(f"compared with {report['reference']}, which the model's format cannot change")
    parts += ["", table([_SPEED, *map(_speed, measured)])]
    errors = [_error(each["precision"], output) for each in measured for output in each["outputs"]]
    parts += ["", table([_ERROR, *errors])]
    kinds = {_compared(output) for each in measured for output in each["outputs"] if output["agreement"] is not None}
    parts += [""] * bool(kinds) + [
        f"agreement of {each}: {_MEANINGS[each]} {report['reference']}" for each in sorted(kinds, reverse=True)
    ]
    failed = [each for each in report["precisions"] if each["failure"]]
    parts += [""] * bool(failed) + [f"no {each['precision']}: {visible(each['failure'])}" for each in failed]
    if choice := report["chosen"]:
        parts += ["", f"runtime.precision would choose {choice['precision']}"]
        parts += [f"  not {name}: {visible(why)}" for name, why in choice["rejected"].items()]
    parts += [f"\nwarning: {visible(warning)}" for warning in report["warnings"]]
    return "\n".join(parts)


_SPEED = ("precision", "rows/s", "ms per batch", "speed", "weights", "GPU memory")
_ERROR = ("output", "precision", "max error", "mean error", "relative", "agreement", "not finite")


_MEANINGS = {
    "rows": "rows whose largest number has the same place as in",
    "elements": "elements that are equal to those of",
}


def _rows_text(rows: Mapping[str, Any]) -> str:
    """Return how many rows were measured, of which source, and in which batches."""
    count, size, batches = rows["count"], rows["batch_size"], rows["batches"]
    source = "generated rows" if rows["source"] == "generated" else f"rows of {visible(rows['source'])}"
    first = "" if rows["source"] == "generated" else "the first "
    text = f"{first}{count} {source}, in {batches} batch{'es' if batches != 1 else ''} of {size}"
    # Repeated rows fill the last batch.
    repeated = batches * size - count
    return text if repeated <= 0 else f"{text} ({repeated} rows are repeated to fill the last one)"


def _compared(output: Mapping[str, Any]) -> str:
    """Return what the agreement of an output counts."""
    return "elements" if output["max_abs_error"] is None else "rows"


def _speed(found: Mapping[str, Any]) -> tuple[str, ...]:
    weights, device = found["weights_bytes"], found["device_bytes"]
    return (
        found["precision"],
        f"{found['rows_per_s']:,.0f}",
        f"{found['batch_ms']:.3g}",
        f"{found['speed']:.2f}",
        _NOTHING if weights is None else amount(weights, SIZES),
        _NOTHING if device is None else amount(device, SIZES),
    )


def _error(precision: str, output: Mapping[str, Any]) -> tuple[str, ...]:
    if output["changed_shape"]:
        return (output["output"], precision, f"shape {output['changed_shape']}", *[_NOTHING] * 4)
    errors = [output[name] for name in ("max_abs_error", "mean_abs_error", "max_rel_error")]
    agreement = output["agreement"]
    return (
        output["output"],
        precision,
        *(_NOTHING if each is None else f"{each:.2g}" for each in errors),
        _NOTHING if agreement is None else f"{100 * agreement:.4g} % of {_compared(output)}",
        str(output["non_finite"]),
    )
