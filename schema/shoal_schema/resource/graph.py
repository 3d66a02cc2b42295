"""The spec of an ``InferenceGraph``: models that call one another, and the response made of their outputs."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta

from shoal_schema.declaring import FieldFault, Rule, Section
from shoal_schema.resource.access import AccessSpec
from shoal_schema.resource.network import NetworkPolicySpec, TlsSpec
from shoal_schema.resource.passthrough import BY_NAME
from shoal_schema.resource.pod import PodSpec
from shoal_schema.resource.route import RouteSpec, ServiceSpec
from shoal_schema.resource.runtime import ProxySpec
from shoal_schema.resource.traffic import QueueSpec, RolloutSpec, ScalingSpec

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


class Combine(StrEnum):
    """Rule that combines several values into one output."""

    FIRST = "First"
    MEAN = "Mean"
    MAX = "Max"
    VOTE = "Vote"
    CONCAT = "Concat"
    STACK = "Stack"


class StepSpec(Section, frozen=True):
    """One model of a graph and its inputs."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.service), has(self.graph), has(self.url)].filter(given, given).size() == 1",
            "a step needs exactly one of service, graph and url",
            "",
        ),
        Rule("!has(self.count) || has(self.each)", "count requires each: it is the number of items of each", ""),
        Rule("self.name != 'request'", "request addresses the client's request: give the step another name", ".name"),
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
                max_length=4096,
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

    def __post_init__(self) -> None:
        """Check that the step names exactly one model."""
        given = [each for each in ("service", "graph", "url") if getattr(self, each) is not None]
        if len(given) != 1:
            raise FieldFault(
                "name", f"({self.name}): a step needs exactly one of service, graph and url, not {given or 'none'}"
            )


class ComposerSpec(Section, frozen=True):
    """Python that calls the steps, where fields cannot express it."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.source) != has(self.importPath)", "a composer needs either source or importPath", ""),
    )

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

    def __post_init__(self) -> None:
        """Check that exactly one of the two is set."""
        if (self.source is None) == (self.import_path is None):
            raise FieldFault("source", "a composer needs either source or importPath")


Outputs = Annotated[dict[str, Annotated[tuple[Reference, ...], Meta(min_length=1, max_length=16)]], Meta(max_length=64)]


class GraphSpec(Section, frozen=True, kw_only=True):
    """Steps of a graph, and the outputs made of theirs."""

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
        dict[str, Combine],
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


def _known(reference: str) -> str:
    """Return CEL that is true if a reference begins with `request` or an existing step."""
    return f"({reference}.startsWith('request.') || self.steps.exists(t, {reference}.startsWith(t.name + '.')))"


class InferenceGraphSpec(GraphSpec, frozen=True, kw_only=True):
    """Desired state of the graph."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.composer) || (has(self.outputs) && self.outputs.size() > 0 && self.steps.all(s, has(s.inputs) &&"
            " s.inputs.size() > 0))",
            "inputs of each step and outputs are required, unless a composer calls the steps",
            "",
        ),
        Rule(
            "!has(self.composer) || !(has(self.outputs) || has(self.combine) || self.steps.exists(s, has(s.inputs) ||"
            " has(s.when) || has(s.each) || has(s.count) || s.onError == 'Omit'))",
            "a composer calls the steps and returns the outputs: remove inputs, when, each, count, onError,"
            " outputs and combine",
            "",
        ),
        Rule(
            f"self.steps.all(s, !has(s.inputs) || s.inputs.all(i, {_known('s.inputs[i]')}))",
            "inputs must name request.NAME, or STEP.OUTPUT of an existing step",
            ".steps",
        ),
        Rule(
            f"self.steps.all(s, !has(s.each) || {_known('s.each')})",
            "each must name request.NAME, or STEP.OUTPUT of an existing step",
            ".steps",
        ),
        Rule(
            f"!has(self.outputs) || self.outputs.all(o, self.outputs[o].all(r, {_known('r')}))",
            "outputs must name request.NAME, or STEP.OUTPUT of an existing step",
            ".outputs",
        ),
        Rule(
            "!has(self.combine) || (has(self.outputs) && self.combine.all(name, name in self.outputs))",
            "combine must name outputs of the graph",
            ".combine",
        ),
        Rule(
            "!has(self.scaling) || self.scaling.minReplicas > 0",
            "scaling.minReplicas must be at least 1: a graph holds no model, so scaling to zero would free no memory",
            ".scaling.minReplicas",
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
        """Return the graph that its proxy runs, with these steps instead of the spec's."""
        fields = {name: getattr(self, name) for name in GraphSpec.__struct_fields__}
        return GraphSpec(**{**fields, "steps": steps})
