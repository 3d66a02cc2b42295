"""The reference page of the custom resources, in Markdown."""

from collections.abc import Collection, Iterator

from msgspec import Struct

from shoal_schema.conditions import FAILURES, BatchConditionType, ConditionType, Reason
from shoal_schema.declaring import Section, element_of, fields_of, section_of
from shoal_schema.publishing.reasons import CONDITIONS, REASONS
from shoal_schema.publishing.words import default_of, in_a_table, kind_of
from shoal_schema.resource import API_VERSION, BATCH_KIND, GRAPH_KIND, KIND
from shoal_schema.resource.graph import InferenceGraphSpec
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.service import InferenceServiceSpec

_INTRODUCTION = f"""# InferenceService

`{API_VERSION}`, kind `{KIND}`, short name `infsvc`. This page is generated from
`schema/shoal_schema/resource` by `make generated`. `kubectl explain infsvc.spec --recursive` shows the
same. A setting that reaches the pods names its environment variable. [`InferenceGraph`](#inferencegraph) and
[`BatchInference`](#batchinference) are below.
"""
_BATCH_INTRODUCTION = f"""# {BATCH_KIND}

`{API_VERSION}`, kind `{BATCH_KIND}`, short name `batchinf`: rows that lie somewhere are scored by the pods of one Job,
once. Deleting it deletes the Job; what was written stays. `model`, `runtime` and `pod` have the fields of an `{KIND}`.
"""
_GRAPH_INTRODUCTION = f"""# {GRAPH_KIND}

`{API_VERSION}`, kind `{GRAPH_KIND}`, short name `infgraph`: models that work together
([graphs.md](../how-to/graphs.md)). What is
not told here has the fields of an `{KIND}`; so has its status, with `GraphValid` in the place of `ModelLoaded`.
"""
_TOLD_ABOVE = ("model", "runtime", "pod")
_ALIKE = (*("proxy", "queue", "scaling", "rollout", "route", "service", "tls", "networkPolicy", "access", "pod"),)


def reference_page() -> str:
    """Return the page as Markdown."""
    parts = [_INTRODUCTION, *_sections(InferenceServiceSpec, "spec"), *_condition_section()]
    parts += [_GRAPH_INTRODUCTION, *_sections(InferenceGraphSpec, "spec", left_out=_ALIKE, heading="InferenceGraph.")]
    parts += [_BATCH_INTRODUCTION]
    parts += _sections(BatchInferenceSpec, "spec", left_out=_TOLD_ABOVE, heading="BatchInference.")
    return "\n".join(parts)


def _sections(cls: type[Struct], path: str, *, left_out: Collection[str] = (), heading: str = "") -> Iterator[str]:
    yield f"## `{heading}{path}`\n\n{cls.__doc__}\n"
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    for each in fields_of(cls):
        env = f" (`{each.env.name}`)" if each.env else ""
        meaning = in_a_table(each.description) + env
        yield f"| `{each.name}` | {kind_of(each)} | {default_of(each)} | {meaning} |"
    yield ""
    if issubclass(cls, Section) and cls.RULES:
        yield "Rules:\n"
        yield from (f"- {rule.message}" for rule in cls.RULES)
        yield ""
    for each in fields_of(cls):
        inner = section_of(each.kind) or section_of(element_of(each.kind))
        if inner and each.name not in left_out:
            yield from _sections(inner, f"{path}.{each.name}", heading=heading)


def _condition_section() -> Iterator[str]:
    yield "## `status.conditions`\n"
    yield "| type | `True` means |\n|---|---|"
    yield from (f"| `{kind}` | {CONDITIONS[kind]} |" for kind in ConditionType)
    yield f"\nOf a [`{BATCH_KIND}`](#batchinference):\n"
    yield "| type | `True` means |\n|---|---|"
    yield from (f"| `{kind}` | {CONDITIONS[kind]} |" for kind in BatchConditionType)
    yield "\n## Reasons\n"
    yield "Of conditions, and of Events. A link leads to what to do. *Waits* are reasons that last until a person acts;"
    yield "their Events are Warnings.\n"
    yield "| reason | | meaning |\n|---|---|---|"
    for reason in Reason:
        waits = "waits" if reason in FAILURES else ""
        yield f"| [`{reason}`](../how-to/reasons.md#{reason.lower()}) | {waits} | {REASONS[reason]} |"
    yield ""
