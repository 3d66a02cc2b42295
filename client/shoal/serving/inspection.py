"""What ``shoal inspect`` tells: a runtime's report on a model, in words."""

from collections.abc import Collection, Mapping
from typing import Any

from shoal.printing import signature_text
from shoal.serving.fields import with_field_names
from shoal.serving.hints import first_requests
from shoal.wire.signature import parse_signature
from shoal_schema.redaction import visible

URL = "http://127.0.0.1:8080"
"""Where `shoal serve` listens unless told otherwise."""
_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_NUMBERS = ("", " thousand", " million", " billion", " trillion")
_STEP = 1000


def with_requests(report: Mapping[str, Any], files: Collection[str]) -> dict[str, Any]:
    """Return a report in the words of fields, with the first requests that the model would answer.

    Args:
        report: of ``python -m shoal_runtime inspect``.
        files: paths that are there, one of which may be an item to send.
    """
    told = {**report, "warnings": [with_field_names(each) for each in report["warnings"]]}
    if told["refused"] is not None:
        told["refused"] = with_field_names(told["refused"])
    if metadata := told["metadata"]:
        told["first_requests"] = list(first_requests(URL, parse_signature(metadata), files))
    return told


def report_text(told: Mapping[str, Any], target: str) -> str:
    """Return what `with_requests` returned as a person reads it; why a model is refused is told apart."""
    parts = []
    if metadata := told["metadata"]:
        parts.append(f"{signature_text(parse_signature(metadata))}\n")
        parts.append(f"format   {told['format']} ({metadata['platform']}), on {told['device']}")
    if files := told["files"]:
        parts.append(f"files    {_counted(files['count'], 'file')}, {_amount(files['bytes'], _UNITS)}")
    if parameters := told["parameters"]:
        of = f"{_amount(parameters['count'], _NUMBERS)} parameters, {_amount(parameters['bytes'], _UNITS)}"
        parts.append(f"size     {of}")
    if metadata:
        device = f", {_amount(told['device_memory_bytes'], _UNITS)} of the GPU's" if told["device_memory_bytes"] else ""
        parts.append(f"memory   {_amount(told['memory_bytes'], _UNITS)}{device} at the most, loading and warming up")
        parts.append(f"start    {told['seconds']:.1f} s, download and all")
        curl, command = told["first_requests"]
        parts.append(f"\nfirst requests, once `shoal serve {target}` listens:\n  {curl}\n  {command}")
    parts += [f"\nwarning: {visible(warning)}" for warning in told["warnings"]]
    return "\n".join(parts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _amount(number: float, units: tuple[str, ...]) -> str:
    """Return a number with three digits and its unit: 21.4 MB, 5.3 million."""
    at = 0
    while number >= _STEP and at < len(units) - 1:
        number, at = number / _STEP, at + 1
    unit = units[at]
    return f"{number:.3g}{unit if unit[:1] in ('', ' ') else f' {unit}'}"
