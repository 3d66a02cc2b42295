"""What a new leader reads from statuses before its first reconciliation."""

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError
from shoal_operator.operation import Operation
from shoal_operator.settings import Settings
from shoal_schema.fields.declaring import Json
from tests.operator.fakes import FakeCluster, run
from tests.operator.samples import MINIMAL, service


class Interrupted(FakeCluster):
    """A cluster whose lists fail a number of times each."""

    def __init__(self, **failures: int) -> None:
        super().__init__()
        self.failures = failures

    def _fail(self, name: str) -> None:
        self.failures[name] = self.failures.get(name, 0) - 1
        if self.failures[name] >= 0:
            raise ApiError(503, "unavailable")

    async def list_services(self, namespaces: object) -> list[Json]:
        self._fail("services")
        return list(self.services.values())

    async def list_pods(self, namespace: str, selector: str) -> tuple[Json, ...]:
        self._fail("pods")
        return ()


@pytest.mark.parametrize("failures", [{}, {"services": 2}, {"pods": 1}, {"services": 1, "pods": 2}])
def test_a_new_leader_reads_all_services_before_any_write_although_lists_fail(failures: dict[str, int]) -> None:
    operation = Operation(Settings.from_env({"SHOAL_OPERATOR_ACTIVATOR_SELECTOR": "app=activator"}))
    cluster = Interrupted(**failures)
    for name in ("cat", "dog"):
        cluster.services[Key("default", name)] = service(MINIMAL, name=name, uid=name)
    operation._cluster = cluster  # type: ignore[assignment]

    run(operation._restore())

    assert operation._upgrading.counts() == {"pending": 0, "running": 0, "failed": 0}
    assert not operation._upgrading.settled, "both services are still to be reconciled"
    assert len(operation._queue.due_since_s(float("inf"))) == 2
    assert cluster.failures["services"] == -1 - failures.get("pods", 0)
    assert not cluster.writes
