"""Differences between the signatures of a stable model and its candidate, as clauses about the candidate."""

from collections.abc import Mapping, Sequence
from typing import Final

from shoal_proxy.model.signature import InputSpec, ModelSignature, OutputSpec

MAX_CLAUSE: Final = 1024
_MAX_NAME: Final = 64


def input_change(stable: ModelSignature, candidate: ModelSignature) -> str:
    """Return the difference of the candidate's inputs; empty if it accepts the stable model's requests."""
    if stable.batches != candidate.batches:
        return f"it has {'a' if candidate.batches else 'no'} batch dimension, unlike the stable revision"
    new = [name for name, spec in candidate.inputs.items() if name not in stable.inputs and not spec.optional]
    required = [
        name for name, spec in candidate.inputs.items() if name in stable.inputs and not spec.optional
        and stable.inputs[name].optional
    ]  # fmt: skip
    parts = _differences(stable.inputs, candidate.inputs)
    parts += [f"requires {_quoted(name)}" for name in new]
    parts += [f"requires {_quoted(name)}, which was optional" for name in required]
    return _clause(parts)


def output_change(stable: ModelSignature, candidate: ModelSignature) -> str:
    """Return the difference of the candidate's outputs; empty if they are the same."""
    added = [f"also returns {_quoted(name)}" for name in candidate.outputs if name not in stable.outputs]
    return _clause([*_differences(stable.outputs, candidate.outputs), *added])


def _differences(
    stable: Mapping[str, InputSpec] | Mapping[str, OutputSpec],
    candidate: Mapping[str, InputSpec] | Mapping[str, OutputSpec],
) -> list[str]:
    parts: list[str] = []
    for name, spec in stable.items():
        other = candidate.get(name)
        if other is None:
            parts.append(f"has no {_quoted(name)}")
            continue
        if other.datatype != spec.datatype:
            parts.append(f"has {_quoted(name)} as {other.datatype}, not {spec.datatype}")
        if other.shape[1:] != spec.shape[1:] or len(other.shape) != len(spec.shape):
            parts.append(f"has {_quoted(name)} with shape {list(other.shape)}, not {list(spec.shape)}")
    return parts


def _quoted(name: str) -> str:
    # Control characters stay escaped.
    return f"`{repr(name[:_MAX_NAME])[1:-1]}`"


def _clause(parts: Sequence[str]) -> str:
    return f"it {'; '.join(parts)}"[:MAX_CLAUSE] if parts else ""
