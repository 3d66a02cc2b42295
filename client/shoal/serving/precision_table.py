"""Present a runtime's measurement of precisions for ``shoal inspect --precision``."""

from collections.abc import Mapping
from typing import Any

from shoal.printing import table
from shoal.serving.fields import with_field_names
from shoal.serving.inspection import SIZES, amount
from shoal_schema.fields.redaction import visible

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
    count = rows["batches"] * rows["batch_size"]
    batches = f"in batches of {rows['batch_size']}, on {report['device']}"
    parts = [f"{report['name']}: {count} {_source(rows['source'])} {batches}"]
    if report["reference"] != "Float32":
        measured = [{**each, "precision": _OWN} if each["precision"] == "Float32" else each for each in measured]
        parts.append(f"compared with {report['reference']}, which the model's format cannot change")
    parts += ["", table([_SPEED, *map(_speed, measured)])]
    errors = [_error(each["precision"], output) for each in measured for output in each["outputs"]]
    parts += ["", table([_ERROR, *errors])]
    failed = [each for each in report["precisions"] if each["failure"]]
    parts += [""] * bool(failed) + [f"no {each['precision']}: {visible(each['failure'])}" for each in failed]
    if choice := report["chosen"]:
        parts += ["", f"runtime.precision would choose {choice['precision']}"]
        parts += [f"  not {name}: {visible(why)}" for name, why in choice["rejected"].items()]
    parts += [f"\nwarning: {visible(warning)}" for warning in report["warnings"]]
    return "\n".join(parts)


_SPEED = ("precision", "rows/s", "ms per batch", "speed", "weights", "GPU memory")
_ERROR = ("output", "precision", "max error", "mean error", "relative", "agreement", "not finite")


def _source(source: str) -> str:
    return "generated rows" if source == "generated" else f"rows of {visible(source)}"


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
        _NOTHING if agreement is None else f"{100 * agreement:.4g} %",
        str(output["non_finite"]),
    )
