"""The executor against a real server: its writes are in the informers at once."""

import asyncio
from collections.abc import Iterator

import pytest

from shoal_local.api_client import ApiClient, Connection, read_kubeconfig
from shoal_local.apiserver.server import running_server
from shoal_local.controllers.changes import Changes, Create, Delete
from shoal_local.controllers.job_counts import TRACKING
from shoal_local.controllers.jobs import release
from shoal_local.controllers.loops import Executor
from shoal_local.events import EventRecorder
from shoal_local.informer import Informer
from shoal_local.objects import Object

pytestmark = pytest.mark.integration
OTHER = "example.com/other"


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with running_server() as server:
        file = tmp_path_factory.mktemp("server") / "kubeconfig"
        file.write_text(server.kubeconfig)
        yield read_kubeconfig(file)


@pytest.mark.parametrize(("finalizers", "left"), [([TRACKING], 0), ([TRACKING, OTHER], 1)])
def test_a_pod_is_gone_with_its_last_finalizer(connection: Connection, finalizers: list[str], left: int) -> None:
    async def story() -> list[Object]:
        async with ApiClient(connection, "test") as client:
            pods = Informer(client, "Pod")
            executor = Executor(client, EventRecorder(client, "test"), [pods])

            def known() -> list[Object]:
                return list(pods.objects.values())

            meta = {"name": f"pod-{left}", "namespace": "default", "finalizers": finalizers}
            spec = {"containers": [{"name": "main", "image": "python"}]}
            made = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            await executor.execute(Changes([Create(made)]))
            await executor.execute(Changes([Delete(known()[0])]))
            assert known()[0]["metadata"]["deletionTimestamp"]
            await executor.execute(Changes(release(known())))
            return known()

    assert len(asyncio.run(story())) == left
