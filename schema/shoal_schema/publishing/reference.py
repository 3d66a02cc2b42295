"""The reference page of the custom resources, in Markdown."""

from collections.abc import Collection, Iterator

from msgspec import Struct

from shoal_schema.fields.declaring import Setting, SettingsSection, element_of, fields_of, section_of
from shoal_schema.publishing.reasons import CONDITIONS, REASONS
from shoal_schema.publishing.words import default_of, in_a_table, kind_of
from shoal_schema.resource import API_VERSION, BATCH_KIND, GRAPH_KIND, KIND
from shoal_schema.resource.conditions import FAILURES, BatchConditionType, ConditionType, Reason
from shoal_schema.resource.graph import InferenceGraphSpec
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.service import InferenceServiceSpec

_INTRODUCTION = f"""# Fields of the resources

Every field of the three custom resources, with type, default and meaning.

| kind | short name | purpose |
|---|---|---|
| [`{KIND}`](#inferenceservice) | `infsvc` | serve a model |
| [`{GRAPH_KIND}`](#inferencegraph) | `infgraph` | serve models that call one another |
| [`{BATCH_KIND}`](#batchinference) | `batchinf` | score the rows of files once |

- The API version is `{API_VERSION}`.
- `kubectl explain infsvc.spec --recursive` shows the same fields.
- A type of *object* links to the section with its fields.
- A field that reaches the pods names its environment variable ([settings](settings.md)).
- Each field has an anchor: its path, as in `fields.md#spec.model.uri`.
- The API server rejects an object that violates a section's rules, with the rule as the message.

This page is generated from `schema/shoal_schema/resource` by `make generated`.
"""
_SERVICE_INTRODUCTION = f"""## {KIND}

Serves a model: a Deployment of pods with a proxy and a runtime, and a Service in front of them.
"""
_GRAPH_INTRODUCTION = f"""## {GRAPH_KIND}

Serves several models as one ([graphs](../how-to/graphs.md)). Sections that are missing here are those
of `{KIND}`. The status is that of `{KIND}` too, with `GraphValid` instead of `ModelLoaded`.
"""
_BATCH_INTRODUCTION = f"""## {BATCH_KIND}

Scores rows with the pods of one Job, once ([batch jobs](../how-to/batch.md)). Deleting it deletes the
Job; written results stay. `model`, `runtime` and `pod` have the fields of `{KIND}`.
"""
_SHARED_WITH_BATCHES = ("model", "runtime", "pod")
_SHARED_WITH_GRAPHS = (
    "proxy",
    "queue",
    "scaling",
    "rollout",
    "route",
    "service",
    "tls",
    "networkPolicy",
    "access",
    "pod",
)


def reference_page() -> str:
    """Return the reference page as Markdown."""
    condition_section = [
        "### `status.conditions`\n",
        "| type | `True` means |\n|---|---|",
        *(f"| `{kind}` | {CONDITIONS[kind]} |" for kind in ConditionType),
        f"\nOf a [`{BATCH_KIND}`](#batchinference):\n",
        "| type | `True` means |\n|---|---|",
        *(f"| `{kind}` | {CONDITIONS[kind]} |" for kind in BatchConditionType),
        "\n### Reasons\n",
        "Reasons of conditions and Events, linked to the remedy. *Waits* marks reasons that last until a user acts;",
        "their Events are Warnings.\n",
        "| reason | | meaning |\n|---|---|---|",
        *(
            f"| [`{reason}`](../how-to/reasons.md#{reason.lower()}) | {'waits' if reason in FAILURES else ''} |"
            f" {REASONS[reason]} |"
            for reason in Reason
        ),
        "",
    ]
    parts = [_INTRODUCTION, _SERVICE_INTRODUCTION, *_sections(InferenceServiceSpec, "spec"), *condition_section]
    parts += [_GRAPH_INTRODUCTION, *_sections(InferenceGraphSpec, f"{GRAPH_KIND}.spec", elsewhere=_SHARED_WITH_GRAPHS)]
    parts += [_BATCH_INTRODUCTION, *_sections(BatchInferenceSpec, f"{BATCH_KIND}.spec", elsewhere=_SHARED_WITH_BATCHES)]
    return "\n".join(parts)


def _sections(cls: type[Struct], path: str, *, elsewhere: Collection[str] = ()) -> Iterator[str]:
    """Yield the Markdown of a struct, then of the structs inside it.

    Fields in ``elsewhere`` link to their description in another part of the page.
    """
    yield f"### `{path}`\n\n{cls.__doc__}\n"
    yield "| field | type | default | meaning |\n|---|---|---|---|"
    for each in fields_of(cls):
        # Shared sections are documented once, under InferenceService.
        home = f"spec.{each.name}" if each.name in elsewhere else f"{path}.{each.name}"
        env = f" (`{each.env.name}`)" if each.env else ""
        name = f'<a id="{path}.{each.name}"></a>`{each.name}`'
        kind = kind_of(each)
        if _inner(each):
            kind = f"[{kind}](#{home.lower().replace('.', '')})"  # the anchor of an object's section
        yield f"| {name} | {kind} | {default_of(each)} | {in_a_table(each.description)}{env} |"
    yield ""
    if issubclass(cls, SettingsSection) and cls.RULES:
        yield "Rules:\n"
        yield from (f"- {rule.message}" for rule in cls.RULES)
        yield ""
    for each in fields_of(cls):
        inner = _inner(each)
        if inner and each.name not in elsewhere:
            yield from _sections(inner, f"{path}.{each.name}")


def _inner(setting: Setting) -> type[Struct] | None:
    return section_of(setting.kind) or section_of(element_of(setting.kind))
