"""An InferenceGraph in the hands of the operator: a service without a model, whose pods say whether it can work."""

import asyncio
from typing import Any

import pytest
from msgspec import structs

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.desired import DEPLOYMENT, HPA, PEERS, SERVICE, desired_objects
from shoal_operator.manifests.specs import graph_of
from shoal_operator.reconciliation.graph_states import GraphStates, ReportedGraph
from shoal_operator.scaling.reading import Reading
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.load import GraphState
from shoal_schema.resource import GRAPH_PLURAL
from tests.operator.fakes import FakeCluster, SaidOfGraphs, reconciler_of
from tests.operator.loads import NOTHING
from tests.operator.samples import GRAPH, graph, graph_target, service, with_fields
from tests.operator.worlds import healthy, running

PIPELINE = Key("default", "pipeline", GRAPH_PLURAL)
MISMATCH = GraphState("SignatureMismatch", "steps[1].inputs.x: second takes FP32[8]")
CIRCLE = with_fields(GRAPH, steps=[{"name": "a", "service": "a", "inputs": {"x": "a.y"}}], outputs={"z": ["a.z"]})


def reconcile(cluster: FakeCluster, said: SaidOfGraphs | None = None) -> Outcome:
    """Look at the graph once."""
    return asyncio.run(reconciler_of(cluster, graphs=said or SaidOfGraphs()).reconcile(PIPELINE))


def cluster_with(spec: Json | None = None) -> FakeCluster:
    """Return a cluster with the graph."""
    cluster = FakeCluster()
    cluster.services[PIPELINE] = graph(spec)
    return cluster


def condition(cluster: FakeCluster, kind: str) -> Any:
    """Return status, reason and message."""
    conditions = cluster.services[PIPELINE]["status"]["conditions"]
    found = next((each for each in conditions if each["type"] == kind), None)
    return found and (found["status"], found["reason"], found["message"])


def add_pod(cluster: FakeCluster, *, ready: bool) -> None:
    """Have a pod of the newest template run."""
    template = cluster.children[Key("default", "pipeline"), DEPLOYMENT]["spec"]["template"]
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    status = {"podIP": "10.0.0.1", "conditions": conditions, "containerStatuses": [running("proxy")]}
    metadata = {"name": "pipeline-1", "uid": "pod-1", **template["metadata"]}
    cluster.pods[PIPELINE] = [{"metadata": metadata, "spec": template["spec"], "status": status}]


def test_a_graph_gets_what_a_service_gets_but_for_a_runtime_and_peers() -> None:
    cluster = cluster_with()
    reconcile(cluster)

    kinds = {kind for _, kind in cluster.children}
    assert {DEPLOYMENT, SERVICE} <= kinds
    assert PEERS not in kinds
    deployment = cluster.children[Key("default", "pipeline"), DEPLOYMENT]
    assert [each["name"] for each in deployment["spec"]["template"]["spec"]["containers"]] == ["proxy"]
    (owner,) = deployment["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("InferenceGraph", "pipeline")
    assert reconcile(cluster) is Outcome.DONE
    assert cluster.writes.count(("apply", "Deployment")) == 1
    # The rules of a service's model are not a graph's.
    assert condition(cluster, "SpecRead") is None


def test_steps_are_found_by_the_names_of_their_services_at_the_operators_port() -> None:
    found = graph_of(graph(), "http://$(CLUSTER_IP):8080")
    assert found is not None
    assert [step.url for step in found.steps] == [
        "http://cat.default.svc:8080/v2/models/cat",
        "http://others.default.svc:8080/v2/models/others",
        "https://models.example.com/v2/models/dog",
    ]
    assert graph_of(service(), "http://$(NAME)") is None


def test_another_graph_is_another_template_and_another_scale_is_not() -> None:
    def hashes(**changes: Any) -> tuple[str, str]:
        made = desired_objects(graph_target(graph(with_fields(GRAPH, **changes))))[DEPLOYMENT]
        annotations = made["spec"]["template"]["metadata"]["annotations"]
        return (
            annotations["serving.shoal.dev/template-hash"],
            made["metadata"]["annotations"]["serving.shoal.dev/spec-hash"],
        )

    assert hashes() == hashes(replicas=3)
    other = hashes(outputs={"z": ["third.z"]})
    assert all(mine != theirs for mine, theirs in zip(hashes(), other, strict=True))


@pytest.mark.parametrize(
    ("state", "status", "ready_reason"),
    [
        (MISMATCH, "False", "SignatureMismatch"),
        (GraphState("StepMissing", "step first: no runtime listens"), "False", "StepMissing"),
        (GraphState("StepNotReady", "step first: the model is not ready"), "Unknown", "StepNotReady"),
    ],
)
def test_what_a_pod_says_that_is_not_ready_is_reported(state: GraphState, status: str, ready_reason: str) -> None:
    cluster = cluster_with()
    reconcile(cluster)
    add_pod(cluster, ready=False)
    reconcile(cluster, SaidOfGraphs({"pod-1": state}))

    assert condition(cluster, "GraphValid") == (status, state.reason, state.message)
    assert condition(cluster, "Ready") == ("False", ready_reason, state.message)
    assert condition(cluster, "ModelLoaded") is None


def test_a_ready_pod_proves_its_graph_whatever_it_said_before() -> None:
    cluster = cluster_with()
    reconcile(cluster)
    assert condition(cluster, "GraphValid")[:2] == ("Unknown", "StepNotReady")
    add_pod(cluster, ready=True)
    deployment = cluster.children[Key("default", "pipeline"), DEPLOYMENT]
    deployment["status"] = {"observedGeneration": 1, **healthy()}
    reconcile(cluster, SaidOfGraphs({"pod-1": MISMATCH}))

    assert condition(cluster, "GraphValid")[:2] == ("True", "GraphValid")
    assert condition(cluster, "Ready")[:2] == ("True", "Ready")


def test_an_autoscaler_of_a_graph_scales_the_graph() -> None:
    scaling = {"mode": "External", "maxReplicas": 3, "external": {"horizontalPodAutoscaler": {}}}
    made = desired_objects(graph_target(graph(with_fields(GRAPH, scaling=scaling))))
    assert made[HPA]["spec"]["scaleTargetRef"]["kind"] == "InferenceGraph"


def test_a_parked_graph_says_how_to_start_it() -> None:
    cluster = cluster_with(with_fields(GRAPH, replicas=0))
    reconcile(cluster)
    reconcile(cluster)
    status, reason, message = condition(cluster, "Ready")
    assert (status, reason) == ("False", "Parked")
    assert "kubectl scale infgraph/pipeline --namespace default --replicas=1 starts" in message


def test_a_graph_that_cannot_be_changes_nothing_and_says_where() -> None:
    cluster = cluster_with()
    reconcile(cluster)
    before = cluster.children[Key("default", "pipeline"), DEPLOYMENT]["spec"]
    cluster.services[PIPELINE]["spec"] = CIRCLE
    reconcile(cluster)

    assert condition(cluster, "GraphValid") == (
        "False",
        "Cycle",
        "spec.steps[0]: the steps form a cycle: a → a",
    )
    assert condition(cluster, "Ready")[1] == "Cycle"
    assert cluster.children[Key("default", "pipeline"), DEPLOYMENT]["spec"] == before


def test_a_service_and_a_graph_of_one_name_do_not_fight() -> None:
    cluster = cluster_with()
    reconcile(cluster)
    cluster.services[Key("default", "pipeline")] = service(name="pipeline", uid="another")
    writes = len(cluster.writes)
    asyncio.run(reconciler_of(cluster).reconcile(Key("default", "pipeline")))

    conditions = cluster.services[Key("default", "pipeline")]["status"]["conditions"]
    assert next(each for each in conditions if each["type"] == "Ready")["reason"] == "NameTaken"
    assert ("apply", "Deployment") not in cluster.writes[writes:]


class Asked:
    """Pods that say one thing after the other."""

    def __init__(self, *said: GraphState | None) -> None:
        self._said = list(said)
        self.times = 0
        self.enough = asyncio.Event()

    async def read(self, replicas: list[Replica]) -> list[Reading]:
        self.times += 1
        state = self._said.pop(0)
        if not self._said:
            self.enough.set()
        return [Reading(None if state is None else structs.replace(NOTHING, graph=state)) for _ in replicas]

    async def close(self) -> None: ...


def test_pods_are_asked_until_they_can_work_and_news_bring_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_operator.reconciliation.graph_states._INTERVAL_S", 0.0)
    valid = GraphState("GraphValid", "")
    marks: list[Key] = []

    async def main() -> None:
        pods = Asked(None, MISMATCH, MISMATCH, valid)
        records = Records()
        states = GraphStates(pods, records, lambda key, delay_s: marks.append(key))  # type: ignore[arg-type]
        replica = Replica("pod-1", "10.0.0.1", "pipeline-1")
        assert states.latest(PIPELINE, [replica]) == {}
        await pods.enough.wait()
        await asyncio.sleep(0)
        assert records.get(PIPELINE, ReportedGraph).states == {"pod-1": valid}
        assert pods.times == 4
        await states.close()

    asyncio.run(main())
    assert marks == [PIPELINE] * 2  # of what is new


def test_what_a_pod_runs_is_what_the_spec_says() -> None:
    env = [{"name": "SHOAL_PROXY_GRAPH", "value": "{}"}, {"name": "SHOAL_PROXY_NAMESPACE", "value": "x"}, {"name": "A"}]
    plain, odd = (
        {each["name"]: each.get("value") for each in made["spec"]["template"]["spec"]["containers"][0]["env"]}
        for made in (
            desired_objects(graph_target(graph(GRAPH)))[DEPLOYMENT],
            desired_objects(graph_target(graph(with_fields(GRAPH, proxy={**GRAPH["proxy"], "env": env}))))[DEPLOYMENT],
        )
    )
    assert {name: value for name, value in odd.items() if name != "A"} == plain
