"""A service whose changes are judged: its cluster, whose pods start at once, and its proxies."""

import copy
from typing import Any

from msgspec import structs

from shoal_operator.children.conditions import find
from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.desired import CANDIDATE, DEPLOYMENT, Child
from shoal_operator.manifests.labels import REVISION_ANNOTATION
from shoal_operator.rollout.plans import Found
from shoal_operator.rollout.report_sums import NO_REPORT
from shoal_operator.rollout.situation import Reports
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.rollout import OutputCounts, RolloutReport
from shoal_schema.resource.conditions import ConditionType
from shoal_schema.resource.rollout import COMMAND_ANNOTATION
from tests.operator.fakes import FakeCluster, FoundOfCandidates, new_year, reconciler_of
from tests.operator.samples import DEFAULTS, MINIMAL, service, with_fields
from tests.operator.worlds import healthy

CAT = Key("default", "cat")
CANARY: Json = with_fields(
    MINIMAL, replicas=4, rollout={"strategy": "Canary", "steps": [{"shadow": 10, "rows": 100}, {"weight": 50}]}
)
NEWER: Json = with_fields(CANARY, model__uri="file:///models/newer")


def agreeing(rows: int) -> RolloutReport:
    """Return the report of proxies whose candidate agreed in so many rows."""
    counts = OutputCounts(rows=rows, repeated_rows=10_000)
    return RolloutReport("", "", served_rows=rows, shadowed_rows=rows, outputs={"y": counts}, ready_candidates=1)


def differing() -> RolloutReport:
    """Return the report of proxies whose candidate has other inputs."""
    return RolloutReport("", "", input_change="x: FP32 became INT64")


class World:
    """A cluster with one service and one operator."""

    def __init__(self, spec: Json = CANARY) -> None:
        self.cluster = FakeCluster()
        self.cluster.services[CAT] = service(spec)
        self.judging: Any = FoundOfCandidates()
        self.now = new_year()
        self.starts = True
        """New pods become ready."""
        self.restart()

    def restart(self, records: Records | None = None, **settings: Any) -> None:
        """Start an operator that knows nothing but the cluster."""
        self.records = Records() if records is None else records
        self.reconciler = reconciler_of(
            self.cluster,
            defaults=structs.replace(DEFAULTS, **settings),
            records=self.records,
            judging=self.judging,
            utc_now=lambda: self.now,
        )

    @property
    def resource(self) -> Json:
        return self.cluster.services[CAT]

    @property
    def rollout(self) -> Json:
        found: Json = self.resource["status"].get("rollout", {})
        return found

    @property
    def judged(self) -> Json:
        """The condition about the candidate."""
        return find(self.resource["status"]["conditions"], ConditionType.CANDIDATE_JUDGED) or {}

    def child(self, kind: Child) -> Json:
        return self.cluster.children.get((CAT, kind), {})

    def revision(self, kind: Child) -> str:
        found: str = self.child(kind).get("metadata", {}).get("annotations", {}).get(REVISION_ANNOTATION, "")
        return found

    def edit(self, spec: Json) -> None:
        self.resource["spec"] = copy.deepcopy(spec)
        self.resource["metadata"]["generation"] += 1

    def command(self, text: str | None) -> None:
        annotations = self.resource["metadata"].setdefault("annotations", {})
        annotations.pop(COMMAND_ANNOTATION, None)
        if text is not None:
            annotations[COMMAND_ANNOTATION] = text

    def find(self, report: RolloutReport | None = None, **found: Any) -> None:
        """Set what is found of the candidate: every proxy does what its plan says."""
        reports = None if report is None else Reports(report, NO_REPORT)
        self.judging.known = Found(responds=True, quiet=True, reports=reports, **found)

    async def reconcile(self, times: int = 1) -> Outcome:
        """Reconcile, and let the cluster start the pods, so many times."""
        for _ in range(times):
            outcome = await self.reconciler.reconcile(CAT)
            self._start(DEPLOYMENT, self.cluster.pods)
            self._start(CANDIDATE, self.cluster.candidate_pods)
        return outcome

    def _start(self, kind: Child, pods: dict[Key, list[Json]]) -> None:
        """Give a Deployment the pods of its template."""
        made = self.child(kind)
        if "spec" not in made:
            pods[CAT] = []
            return
        count, template = made["spec"]["replicas"], made["spec"]["template"]
        ready = "True" if self.starts else "False"
        made["status"] = {"observedGeneration": made["metadata"]["generation"], **healthy(count)}
        pods[CAT] = [
            {
                "metadata": {"name": f"{kind.named('cat')}-{at}", "uid": f"{kind.label}-{at}", **template["metadata"]},
                "spec": template["spec"],
                "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
            }
            for at in range(count)
        ]
