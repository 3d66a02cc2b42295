"""The spec of an ``InferenceGraph``: models that work together, and what is told of their answers."""

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
"""What stands in the place of a step in references to the caller's own tensors."""
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
    """What becomes of a row whose step failed."""

    FAIL = "Fail"
    OMIT = "Omit"


class Combine(StrEnum):
    """How an output is made of several values."""

    FIRST = "First"
    MEAN = "Mean"
    MAX = "Max"
    VOTE = "Vote"
    CONCAT = "Concat"
    STACK = "Stack"


class StepSpec(Section, frozen=True):
    """One model of a graph: which, and what it is given."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.service), has(self.graph), has(self.url)].filter(given, given).size() == 1",
            "a step is one of service, graph and url",
            "",
        ),
        Rule("!has(self.count) || has(self.each)", "count is how many items of each there are: name them, too", ""),
        Rule("self.name != 'request'", "request is what the caller sends: give the step another name", ".name"),
    )

    name: Annotated[str, Meta(pattern=STEP_NAME, max_length=63, description="What references call it.")]
    inputs: Annotated[
        dict[str, Reference],
        Meta(
            max_length=32,
            description="By input of the model, the tensor it is given: `request.NAME`, or `STEP.OUTPUT`.",
        ),
    ] = {}  # noqa: RUF012 (msgspec copies it)
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
                description="A model of any server of the Open Inference Protocol: `http://HOST:PORT/v2/models/NAME`;"
                " with `https://` its certificate is checked.",
            ),
        ]
        | None
    ) = None
    when: (
        Annotated[
            str,
            Meta(
                max_length=4096,
                description="For which rows it runs: comparisons of tensors that hold one value a row, joined by `and`,"
                " `or`, `not`: `fast.probability < 0.8`. Default: all.",
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
                description="It runs once for each item of this tensor, `detect.crops`, and is given the item; its"
                " answers become lists again. Tensors that lie beside it, item by item, follow behind commas.",
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
                description="How many items of `each` a row has; what follows them is padding. Default: all of them, of"
                " `BYTES` without the empty ones at the end.",
            ),
        ]
        | None
    ) = None
    on_error: Annotated[
        OnError,
        Meta(
            description="`Fail`: a row that fails here fails, with the step's name. `Omit`: it goes on without what"
            " this step would have given."
        ),
    ] = OnError.FAIL

    def __post_init__(self) -> None:
        """Refuse what names no model, or several."""
        given = [each for each in ("service", "graph", "url") if getattr(self, each) is not None]
        if len(given) != 1:
            raise FieldFault("name", f"({self.name}): a step is one of service, graph and url, not {given or 'none'}")


class ComposerSpec(Section, frozen=True):
    """Python that takes a request through the steps, where no document says how."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule("has(self.source) != has(self.importPath)", "a composer is one of source and importPath", ""),
    )

    source: (
        Annotated[
            str,
            Meta(
                min_length=1,
                max_length=65_536,
                description="A module that defines one class with `inputs`, `outputs` and `async def run(self, inputs,"
                " steps)`.",
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
                description="`MODULE:CLASS` of such a class in an image of your own, made from the proxy's"
                " (`proxy.image`), for what needs more than numpy; on one machine beside the file.",
            ),
        ]
        | None
    ) = None

    def __post_init__(self) -> None:
        """Refuse what names no code, or two."""
        if (self.source is None) == (self.import_path is None):
            raise FieldFault("source", "a composer is one of source and importPath")


Outputs = Annotated[dict[str, Annotated[tuple[Reference, ...], Meta(min_length=1, max_length=16)]], Meta(max_length=64)]


class GraphSpec(Section, frozen=True, kw_only=True):
    """Which models, in what order, and what the answer is made of."""

    steps: Annotated[
        tuple[StepSpec, ...],
        Meta(
            min_length=1,
            max_length=32,
            extra_json_schema=BY_NAME,
            description="The models. Their order follows from what they are given; what does not depend on one another"
            " runs at the same time.",
        ),
    ]
    outputs: Annotated[
        Outputs,
        Meta(
            description="What the answer holds: by output, the tensors it is taken from. Of several, a row gets the"
            " first that there is, unless `combine` says otherwise."
        ),
    ] = {}  # noqa: RUF012 (msgspec copies it)
    combine: Annotated[
        dict[str, Combine],
        Meta(
            max_length=64,
            description="By output, how several tensors become one: `First` (the default), `Mean`, `Max`, `Vote` (what"
            " most say, the first of equals), `Concat` (one after another) or `Stack` (side by side).",
        ),
    ] = {}  # noqa: RUF012 (msgspec copies it)
    composer: ComposerSpec | None = None
    deadline_milliseconds: (
        Annotated[
            float,
            Meta(
                gt=0,
                le=3_600_000,
                description="No answer is later than this, whatever the caller's patience; each step is told what is"
                " left of it. Default: as the caller says, or `queue.timeoutMilliseconds`.",
            ),
        ]
        | None
    ) = None
    in_flight: Annotated[
        int, Meta(ge=1, le=4096, description="Requests under way in one pod; more wait for their turn.")
    ] = IN_FLIGHT


def _known(reference: str) -> str:
    """Return what tells, in CEL, that a reference begins with the request or a step that there is."""
    return f"({reference}.startsWith('request.') || self.steps.exists(t, {reference}.startsWith(t.name + '.')))"


class InferenceGraphSpec(GraphSpec, frozen=True, kw_only=True):
    """What a user asks for."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.composer) || (has(self.outputs) && self.outputs.size() > 0 && self.steps.all(s, has(s.inputs) &&"
            " s.inputs.size() > 0))",
            "say what each step is given (inputs) and what the answer holds (outputs); or have a composer that does",
            "",
        ),
        Rule(
            "!has(self.composer) || !(has(self.outputs) || has(self.combine) || self.steps.exists(s, has(s.inputs) ||"
            " has(s.when) || has(s.each) || has(s.count) || s.onError == 'Omit'))",
            "the composer's code says what steps are given and what the answer holds: leave out inputs, when, each,"
            " count, onError, outputs and combine",
            "",
        ),
        Rule(
            f"self.steps.all(s, !has(s.inputs) || s.inputs.all(i, {_known('s.inputs[i]')}))",
            "inputs name request.NAME, or STEP.OUTPUT of a step that there is",
            ".steps",
        ),
        Rule(
            f"self.steps.all(s, !has(s.each) || {_known('s.each')})",
            "each names request.NAME, or STEP.OUTPUT of a step that there is",
            ".steps",
        ),
        Rule(
            f"!has(self.outputs) || self.outputs.all(o, self.outputs[o].all(r, {_known('r')}))",
            "outputs name request.NAME, or STEP.OUTPUT of a step that there is",
            ".outputs",
        ),
        Rule(
            "!has(self.combine) || (has(self.outputs) && self.combine.all(name, name in self.outputs))",
            "combine names outputs of outputs",
            ".combine",
        ),
        Rule(
            "!has(self.scaling) || self.scaling.minReplicas > 0",
            "scaling.minReplicas must be at least 1: a graph has no model whose memory sleep would free",
            ".scaling.minReplicas",
        ),
    )

    proxy: ProxySpec = ProxySpec()
    queue: QueueSpec = QueueSpec()
    replicas: Annotated[int, Meta(ge=0, le=10_000, description="Pods to run, as of an `InferenceService`.")] = 1
    scaling: ScalingSpec | None = None
    rollout: RolloutSpec = RolloutSpec()
    route: RouteSpec | None = None
    service: ServiceSpec = ServiceSpec()
    tls: TlsSpec | None = None
    network_policy: NetworkPolicySpec = NetworkPolicySpec()
    access: AccessSpec | None = None
    pod: PodSpec = PodSpec()

    def graph(self, steps: tuple[StepSpec, ...]) -> GraphSpec:
        """Return what a proxy is told of it, with these steps in the place of its own."""
        told = {name: getattr(self, name) for name in GraphSpec.__struct_fields__}
        return GraphSpec(**{**told, "steps": steps})
