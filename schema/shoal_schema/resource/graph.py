"""The spec of an ``InferenceGraph``: models that call one another, and the response made of their outputs."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.expressions.grammar import MAX_LENGTH
from shoal_schema.fields.declaring import SettingsSection
from shoal_schema.fields.rules import (
    Custom,
    Every,
    Given,
    Not,
    Rule,
    any_of,
    checked_by_api_server,
    excludes,
    not_in,
    one_of,
    requires,
)
from shoal_schema.resource.access import AccessSpec
from shoal_schema.resource.network import NetworkPolicySpec, TlsSpec
from shoal_schema.resource.passthrough import BY_NAME
from shoal_schema.resource.pod import PodSpec
from shoal_schema.resource.proxy import ProxySpec
from shoal_schema.resource.rollout import RolloutSpec
from shoal_schema.resource.route import RouteSpec, ServiceSpec
from shoal_schema.resource.traffic import QueueSpec, ScalingSpec

REQUEST = "request"
"""The step name by which references address the tensors of the request."""
STEP_NAME = r"^[a-z][a-z0-9_]*\Z"
TENSOR = r"[^\s,\[\]'\"]+"
REFERENCE = rf"^[a-z][a-z0-9_]*[.]{TENSOR}\Z"
EACH = rf"^[a-z][a-z0-9_]*[.]{TENSOR}(, *[a-z][a-z0-9_]*[.]{TENSOR})*\Z"
DNS_LABEL = r"^[a-z]([-a-z0-9]*[a-z0-9])?\Z"
MODEL_URL = r"^(https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?|unix:/[^\s?#]*)/v2/models/[A-Za-z0-9._-]+\Z"
IMPORT_PATH = r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*\Z"
IN_FLIGHT = 256

Reference = Annotated[str, Meta(pattern=REFERENCE, max_length=320)]


class OnError(StrEnum):
    """Handling of a row for which a step failed."""

    FAIL = "Fail"
    OMIT = "Omit"


class CombineRule(StrEnum):
    """Rule that combines several values into one output."""

    FIRST = "First"
    MEAN = "Mean"
    MAX = "Max"
    VOTE = "Vote"
    CONCAT = "Concat"
    STACK = "Stack"


class StepSpec(SettingsSection, frozen=True):
    """One model of a graph and its inputs."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        one_of(("service", "graph", "url"), "a step"),
        requires("count", "each", "the number of items of each"),
        not_in("name", (REQUEST,), "request addresses the client's request: give the step another name"),
    )

    name: Annotated[str, Meta(pattern=STEP_NAME, max_length=63, description="Name of the step in references.")]
    inputs: Annotated[
        dict[str, Reference],
        Meta(
            max_length=32,
            description="Input of the model -> the tensor it reads: `request.NAME` or `STEP.OUTPUT`.",
        ),
    ] = {}  # noqa: RUF012 (msgspec copies it)
    # Which model the step calls: exactly one of these.
    service: (
        Annotated[
            str,
            Meta(pattern=DNS_LABEL, max_length=63, description="An `InferenceService` of the same namespace."),
        ]
        | None
    ) = None
    graph: (
        Annotated[str, Meta(pattern=DNS_LABEL, max_length=63, description="An `InferenceGraph` of the same namespace.")]
        | None
    ) = None
    url: (
        Annotated[
            str,
            Meta(
                pattern=MODEL_URL,
                max_length=2048,
                description="A model of any server of the Open Inference Protocol: `http://HOST:PORT/v2/models/NAME`."
                " With `https://` the server's certificate is verified.",
            ),
        ]
        | None
    ) = None
    # For which rows and items the step runs.
    when: (
        Annotated[
            str,
            Meta(
                max_length=MAX_LENGTH,
                description="Condition of the rows for which the step runs: comparisons of tensors with one value per"
                " row, joined by `and`, `or` and `not` (`fast.probability < 0.8`). Default: all rows.",
            ),
        ]
        | None
    ) = None
    each: (
        Annotated[
            str,
            Meta(
                pattern=EACH,
                max_length=1024,
                description="Run the step once per item of this tensor (`detect.crops`) with the item as input; the"
                " outputs become lists again. Tensors with the same items may follow, separated by commas.",
            ),
        ]
        | None
    ) = None
    count: (
        Annotated[
            str,
            Meta(
                pattern=REFERENCE,
                max_length=320,
                description=(
                    "Tensor with the number of items of `each` in a row; further items are padding. Default: all "
                    "items, but without empty `BYTES` at the end."
                ),
            ),
        ]
        | None
    ) = None
    on_error: Annotated[
        OnError,
        Meta(
            description="`Fail` fails a row that fails in this step, with the step's name in the error. `Omit`"
            " continues without the step's outputs."
        ),
    ] = OnError.FAIL


class ComposerSpec(SettingsSection, frozen=True):
    """Python code that calls the steps, for data flow that fields cannot express."""

    RULES: ClassVar[tuple[Rule, ...]] = (one_of(("source", "importPath"), "a composer"),)

    source: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=65_536,
                description="Source of a module that defines one class with `inputs`, `outputs` and `async def"
                " run(self, inputs, steps)`.",
            ),
        ]
        | None
    ) = None
    import_path: (
        Annotated[
            str,
            Meta(
                pattern=IMPORT_PATH,
                max_length=512,
                description=(
                    "`MODULE:CLASS` of a composer in `proxy.image`, which must be your own image based on the "
                    "proxy's. With `shoal serve`, put the module beside the graph's file."
                ),
            ),
        ]
        | None
    ) = None


Outputs = Annotated[dict[str, Annotated[tuple[Reference, ...], Meta(min_length=1, max_length=16)]], Meta(max_length=64)]


def _known(reference: str) -> str:
    """Return CEL that is true if a reference begins with `request` or an existing step."""
    return f"({reference}.startsWith('request.') || self.steps.exists(t, {reference}.startsWith(t.name + '.')))"


def _refers(reference: str, graph: "GraphSpec") -> bool:
    return reference.partition(".")[0] in {REQUEST, *(step.name for step in graph.steps)}


class GraphSpec(SettingsSection, frozen=True, kw_only=True):
    """Steps of a graph, and the graph's outputs."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            any_of(Given("composer"), Given("outputs")),
            "outputs are required, unless a composer calls the steps",
            "outputs",
        ),
        Rule(
            any_of(Given("composer"), Every("steps", Given("inputs"))),
            "inputs of each step are required, unless a composer calls the steps",
            "steps",
        ),
        excludes("outputs", "composer", "a composer makes the outputs: remove outputs"),
        excludes("combine", "composer", "a composer makes the outputs: remove combine"),
        *(
            Rule(
                any_of(Not(Given("composer")), Every("steps", Not(Given(each)))),
                f"a composer calls the steps: remove {each}",
                "steps",
            )
            for each in ("inputs", "when", "each", "count", "onError")
        ),
        Rule(
            Custom(
                f"self.steps.all(s, !has(s.inputs) || s.inputs.all(i, {_known('s.inputs[i]')}))",
                lambda graph: all(_refers(each, graph) for step in graph.steps for each in step.inputs.values()),
            ),
            "inputs must name request.NAME, or STEP.OUTPUT of an existing step",
            "steps",
        ),
        Rule(
            Custom(
                f"self.steps.all(s, !has(s.each) || {_known('s.each')})",
                lambda graph: all(_refers(step.each, graph) for step in graph.steps if step.each is not None),
            ),
            "each must name request.NAME, or STEP.OUTPUT of an existing step",
            "steps",
        ),
        Rule(
            Custom(
                f"!has(self.outputs) || self.outputs.all(o, self.outputs[o].all(r, {_known('r')}))",
                lambda graph: all(_refers(each, graph) for names in graph.outputs.values() for each in names),
            ),
            "outputs must name request.NAME, or STEP.OUTPUT of an existing step",
            "outputs",
        ),
        Rule(
            Custom(
                "!has(self.combine) || self.combine.size() == 0"
                " || (has(self.outputs) && self.combine.all(name, name in self.outputs))",
                lambda graph: graph.combine.keys() <= graph.outputs.keys(),
            ),
            "combine must name outputs of the graph",
            "combine",
        ),
    )

    steps: Annotated[
        tuple[StepSpec, ...],
        Meta(
            min_length=1,
            max_length=32,
            extra_json_schema=BY_NAME,
            description="The models. Steps run as soon as their inputs are available, and independent steps run"
            " concurrently.",
        ),
    ]
    outputs: Annotated[
        Outputs,
        Meta(
            description=(
                "Output of the graph -> its source tensors. With several tensors, a row gets the first available "
                "one, unless `combine` has an entry."
            )
        ),
    ] = {}  # noqa: RUF012 (msgspec copies it)
    combine: Annotated[
        dict[str, CombineRule],
        Meta(
            max_length=64,
            description=(
                "Output -> rule that combines several tensors: `First` (the default), `Mean`, `Max`, `Vote` (the "
                "most frequent value, the first of equals), `Concat` (joined lists) or `Stack` (a new dimension)."
            ),
        ),
    ] = {}  # noqa: RUF012 (msgspec copies it)
    composer: ComposerSpec | None = None
    deadline_milliseconds: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=3_600_000,
                description="Maximum time of a request; each step gets the remaining time. Default: the client's"
                " timeout, else `queue.timeoutMilliseconds`.",
            ),
        ]
        | None
    ) = None
    in_flight: Annotated[
        int, Meta(ge=1, le=4096, description="Requests that one pod runs concurrently; further requests are queued.")
    ] = IN_FLIGHT


class InferenceGraphSpec(GraphSpec, frozen=True, kw_only=True):
    """Desired state of the graph."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        *GraphSpec.RULES,
        not_in(
            "scaling.minReplicas",
            (0,),
            "scaling.minReplicas must be at least 1: a graph has no model whose memory scaling to zero would free",
        ),
        not_in(
            "rollout.strategy",
            ("Shadow", "Canary"),
            "rollout.strategy must be Rolling: a graph forms no batches to compare. The services of its steps may have"
            " another strategy",
        ),
    )

    proxy: ProxySpec = ProxySpec()
    queue: QueueSpec = QueueSpec()
    replicas: Annotated[int, Meta(ge=0, le=10_000, description="Number of pods, as in an `InferenceService`.")] = 1
    scaling: ScalingSpec | None = None
    rollout: RolloutSpec = RolloutSpec()
    route: RouteSpec | None = None
    service: ServiceSpec = ServiceSpec()
    tls: TlsSpec | None = None
    network_policy: NetworkPolicySpec = NetworkPolicySpec()
    access: AccessSpec | None = None
    pod: PodSpec = PodSpec()

    def graph(self, steps: tuple[StepSpec, ...]) -> GraphSpec:
        """Return the fields that the graph's proxy reads, with other ``steps``."""
        fields = {name: getattr(self, name) for name in GraphSpec.__struct_fields__}
        return GraphSpec(**{**fields, "steps": steps})


GRAPH_RULES = (
    Rule(
        # In Python, `make_plan` finds every cycle.
        checked_by_api_server("self.spec.steps.all(s, !has(s.graph) || s.graph != self.metadata.name)"),
        "a graph cannot be a step of itself",
        "spec.steps",
    ),
)
"""Rules over the whole object, which compare spec and metadata."""
