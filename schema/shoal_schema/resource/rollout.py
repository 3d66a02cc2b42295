"""Rollout of a changed spec: by replacing pods, or by a candidate that is compared with the stable revision."""

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from msgspec import Meta

from shoal_schema.fields.declaring import PROXY, Env, SettingsSection, section_of, settings_of
from shoal_schema.fields.rules import (
    Compared,
    Custom,
    Every,
    Given,
    In,
    Matches,
    Not,
    Rule,
    all_of,
    any_of,
    requires_value,
    some_of,
)
from shoal_schema.interfaces.headers import OWN_HEADERS, OWN_HEADERS_PATTERN
from shoal_schema.interfaces.stay import MAX_S as MAX_STAY_S
from shoal_schema.resource import GROUP
from shoal_schema.resource.comparison import CompareSpec
from shoal_schema.resource.passthrough import HEADER_NAME

MAX_STEPS: Final = 16
DEFAULT_STEP_ROWS: Final = 2000
"""Rows of a step that has neither `rows` nor `minutes`."""


COMMAND_ANNOTATION: Final = f"{GROUP}/rollout"
"""Annotation of an ``InferenceService`` with a `RolloutCommand` and the candidate's revision: ``pause 3f2a9c01d4``."""


class RolloutCommand(StrEnum):
    """Commands of users to a rollout; without the annotation, it proceeds by its steps."""

    PAUSE = "pause"
    """Keep the candidate without rows."""
    ABORT = "abort"
    """Remove the candidate."""
    PROMOTE = "promote"
    """Make the candidate stable without further comparison."""


class RolloutStrategy(StrEnum):
    """Ways to replace the pods of a service whose model, runtime or batching has changed."""

    ROLLING = "Rolling"
    SHADOW = "Shadow"
    CANARY = "Canary"


class OnFailure(StrEnum):
    """Reactions to a candidate that fails the comparison."""

    ROLLBACK = "Rollback"
    PAUSE = "Pause"


class RolloutStep(SettingsSection, frozen=True):
    """One step of a rollout."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        some_of(("shadow", "weight"), "a step", "otherwise the candidate gets no rows"),
    )

    shadow: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100,
                description="Percentage of batches that the candidate runs again after the stable revision. Its"
                " results are compared and discarded.",
            ),
        ]
        | None
    ) = None
    weight: (
        Annotated[
            int,
            Meta(ge=1, le=100, description="Percentage of requests that the candidate serves. Default: none."),
        ]
        | None
    ) = None
    rows: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=100_000_000,
                description="Rows that the candidate must run in this step before the next one begins. Default without"
                f" `minutes`: {DEFAULT_STEP_ROWS}.",
            ),
        ]
        | None
    ) = None
    minutes: (
        Annotated[
            int,
            Meta(ge=1, le=43_200, description="Minimum time of the step."),
        ]
        | None
    ) = None


class StickySpec(SettingsSection, frozen=True, kw_only=True):
    """Assignment of clients to revisions."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            Not(Matches("header", OWN_HEADERS_PATTERN)),
            f"header must not name a header that the connection sets: {', '.join(sorted(OWN_HEADERS))}",
            "header",
        ),
    )

    header: Annotated[
        str,
        Meta(
            pattern=HEADER_NAME,
            max_length=128,
            description="Request header whose value decides between the revisions, so that a client stays with one."
            " Requests without it are assigned one by one.",
        ),
    ]


_TOLERANCES: Final = [f"compare.{each.name}" for each in settings_of(CompareSpec) if section_of(each.kind) is None]

_WEIGHT = "(has(self.steps[%s].weight) ? self.steps[%s].weight : 0)"


def _weights_rise(rollout: "RolloutSpec") -> bool:
    weights = [step.weight or 0 for step in rollout.steps]
    return weights == sorted(weights)


class RolloutSpec(SettingsSection, frozen=True):
    """Rollout of a changed spec."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            any_of(Not(In("maxSurge", (0,))), Not(In("maxUnavailable", (0,)))),
            "maxSurge and maxUnavailable cannot both be 0: no pod could be replaced",
            "maxSurge",
        ),
        Rule(
            Compared("minReadySeconds", "<", "progressDeadlineSeconds"),
            "minReadySeconds must be less than progressDeadlineSeconds",
            "minReadySeconds",
        ),
        *(
            requires_value(name, "strategy", "Shadow", "Canary", why="Rolling compares nothing")
            for name in ("steps", "onFailure")
        ),
        Rule(
            any_of(In("strategy", ("Shadow", "Canary")), all_of(*(Not(Given(name)) for name in _TOLERANCES))),
            "compare requires strategy Shadow or Canary: Rolling compares nothing",
            "compare",
        ),
        requires_value("sticky", "strategy", "Canary", why="only Canary sends requests to a candidate"),
        Rule(
            any_of(In("strategy", ("Canary",)), Every("steps", Not(Given("weight")))),
            "a step with weight requires strategy Canary: Shadow sends no request to the candidate",
            "steps",
        ),
        # The default steps of Canary have both.
        Rule(
            any_of(Not(Given("steps")), Not(Given("compare.outputs")), Not(Every("steps", Not(Given("shadow"))))),
            "compare.outputs requires a step with shadow: only copies of batches have two results to compare",
            "compare.outputs",
        ),
        Rule(
            any_of(Not(Given("steps")), Not(Given("sticky")), Not(Every("steps", Not(Given("weight"))))),
            "sticky requires a step with weight: no other step sends requests to the candidate",
            "sticky",
        ),
        # CEL has no index in `all`, so the positions are a literal list.
        Rule(
            Custom(
                f"!has(self.steps) || {list(range(MAX_STEPS - 1))}.all(i, i + 1 >= self.steps.size()"
                f" || {_WEIGHT % ('i', 'i')} <= {_WEIGHT % ('i + 1', 'i + 1')})",
                _weights_rise,
            ),
            "the weights of steps must not fall: a step without weight is 0",
            "steps",
        ),
    )

    strategy: Annotated[
        RolloutStrategy,
        Meta(
            description="How a changed `model`, `runtime`, `batching` or `queue` takes effect. `Rolling` replaces the"
            " pods. `Shadow` and `Canary` first start a candidate Deployment and compare it with the stable one:"
            " `Shadow` with copies of batches, `Canary` also with a rising share of the requests. Other changes of"
            " the spec replace the pods with any strategy."
        ),
    ] = RolloutStrategy.ROLLING
    # Comparison with a candidate.
    steps: Annotated[
        tuple[RolloutStep, ...],
        Meta(
            min_length=1,
            max_length=MAX_STEPS,
            description="Steps of `Shadow` and `Canary`, in order. After the last one, the candidate becomes stable."
            " Default of `Shadow`: 10 % of batches for 10,000 rows; of `Canary`: shadow 10 for 2,000 rows, then weights"
            " 5, 25 and 50 with 2,000 rows each.",
        ),
    ] = ()
    compare: CompareSpec = CompareSpec()
    on_failure: Annotated[
        OnFailure,
        Meta(
            description="Reaction to a candidate that fails the comparison or does not start. `Rollback` removes it;"
            " `Pause` keeps it without requests. Both keep the stable pods until the spec changes."
        ),
    ] = OnFailure.ROLLBACK
    sticky: StickySpec | None = None
    # Pace of a rollout.
    max_surge: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description=(
                "Additional pods during a rollout. 1 requires a spare GPU; 0 with `maxUnavailable` 1 stops a pod "
                "before its replacement starts."
            ),
        ),
    ] = 1
    max_unavailable: Annotated[
        int, Meta(ge=0, le=1000, description="Pods that may be unavailable during a rollout.")
    ] = 0
    progress_deadline_seconds: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400,
            description="Time without progress after which a rollout is reported as failed. It must exceed the"
            " time to pull the image and load the model.",
        ),
    ] = 600
    min_ready_seconds: Annotated[
        int,
        Meta(
            ge=0,
            le=3600,
            description=(
                "Time that a new pod must be ready, and serving requests, before it counts as available and the "
                "next pod is replaced."
            ),
        ),
    ] = 0
    # How a pod stops.
    drain_delay_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=600,
            description="Time that a stopping pod keeps accepting requests, until every load balancer has removed it.",
        ),
        Env("SHOAL_PROXY_DRAIN_DELAY_S", PROXY, unset=0.0),
    ] = 5.0
    drain_timeout_seconds: Annotated[
        float,
        Meta(ge=0, le=3600, description="Time for a stopping pod to finish the requests that it accepted."),
        Env("SHOAL_PROXY_DRAIN_TIMEOUT_S", PROXY),
    ] = 60.0
    replacement_timeout_seconds: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=MAX_STAY_S,
                description="Time that a stopping pod keeps serving while no other pod is ready and a replacement"
                " is starting, so that no request is rejected when a node is drained. It is part of the grace period."
                " Default: 120, or 0 with containers that stop at once (`runtime.port`, `pod.containers`).",
            ),
        ]
        | None
    ) = None


_DEFAULT_STEPS: Final = {
    RolloutStrategy.ROLLING: (),
    RolloutStrategy.SHADOW: (RolloutStep(shadow=10, rows=10_000),),
    RolloutStrategy.CANARY: (
        RolloutStep(shadow=10),
        RolloutStep(weight=5),
        RolloutStep(weight=25),
        RolloutStep(weight=50),
    ),
}


def steps_of(rollout: RolloutSpec) -> tuple[RolloutStep, ...]:
    """Return the steps of a rollout, or the default ones of its strategy."""
    return rollout.steps or _DEFAULT_STEPS[rollout.strategy]


def step_rows(step: RolloutStep) -> int:
    """Return the rows that a candidate must run in a step; 0 if only its time counts."""
    if step.rows is not None:
        return step.rows
    return DEFAULT_STEP_ROWS if step.minutes is None else 0
