"""Present a runtime's report on a model for ``shoal inspect``."""

from collections.abc import Collection, Mapping
from typing import Any

from shoal.printing import signature_text
from shoal.serving.hints import first_requests
from shoal.wire.signature import parse_signature
from shoal_schema.fields.redaction import visible
from shoal_schema.process.field_names import with_field_names

URL = "http://127.0.0.1:8080"
"""Default URL of `shoal serve`."""
SIZES = ("bytes", "kB", "MB", "GB", "TB")
_NUMBERS = ("", " thousand", " million", " billion", " trillion")
_STEP = 1000


def with_requests(report: Mapping[str, Any], files: Collection[str]) -> dict[str, Any]:
    """Return a report with field names in its messages, and with sample requests.

    Args:
        report: output of ``python -m shoal_runtime inspect``.
        files: existing paths, one of which may be a sample item.
    """
    named = {**report, "warnings": [with_field_names(each) for each in report["warnings"]]}
    if named["refused"] is not None:
        named["refused"] = with_field_names(named["refused"])
    if metadata := named["metadata"]:
        named["first_requests"] = list(first_requests(URL, parse_signature(metadata), files))
    return named


def report_text(report: Mapping[str, Any], target: str) -> str:
    """Return a report of `with_requests` as text, without the error of a model that cannot be loaded."""
    parts = []
    if metadata := report["metadata"]:
        parts.append(f"{signature_text(parse_signature(metadata))}\n")
        parts.append(f"format   {report['format']} ({metadata['platform']}), on {report['device']}")
        if precision := metadata.get("parameters", {}).get("precision"):
            parts.append(f"precision {precision}, the fastest within runtime.precision")
    if files := report["files"]:
        count = "1 file" if files["count"] == 1 else f"{files['count']} files"
        parts.append(f"files    {count}, {amount(files['bytes'], SIZES)}")
    if parameters := report["parameters"]:
        size = f"{amount(parameters['count'], _NUMBERS)} parameters, {amount(parameters['bytes'], SIZES)}"
        parts.append(f"size     {size}")
    if metadata:
        device_bytes = report["device_memory_bytes"]
        device = f", {amount(device_bytes, SIZES)} on the GPU" if device_bytes else ""
        parts.append(f"memory   {amount(report['memory_bytes'], SIZES)}{device} at most, while loading and warming up")
        parts.append(f"start    {report['seconds']:.1f} s, including downloads")
        curl, command = report["first_requests"]
        parts.append(f"\nsample requests, once `shoal serve {target}` is ready:\n  {curl}\n  {command}")
    parts += [f"\nwarning: {visible(warning)}" for warning in report["warnings"]]
    return "\n".join(parts)


def amount(number: float, units: tuple[str, ...]) -> str:
    """Return a number in three digits with its unit: 21.4 MB, 5.3 million."""
    # Decimal units, as for disks.
    at = 0
    while number >= _STEP and at < len(units) - 1:
        number, at = number / _STEP, at + 1
    unit = units[at]
    return f"{number:.3g}{unit if unit[:1] in ('', ' ') else f' {unit}'}"
