"""A proxy that runs a graph of fake models, all on one loop of their own."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import uvloop

from shoal_proxy.server import Proxy
from shoal_proxy.settings import Settings
from shoal_schema.fields.addresses import Address, TcpAddress
from tests.arranged import arranged
from tests.fakes import FakeRuntime, RunningProxy


class RunningGraph(RunningProxy):
    """A graph's proxy, and the models of its steps by name."""

    def __init__(self, models: Mapping[str, FakeRuntime], proxy: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(next(iter(models.values())), proxy, loop)
        self.models = models

    @property
    def infer_url(self) -> str:
        """Return where requests go."""
        return f"{self.url}/v2/models/graph/infer"


@contextmanager
def running_graph(
    models: Mapping[str, FakeRuntime], spec: Mapping[str, Any], *, ready: bool = True, **settings: Any
) -> Iterator[RunningGraph]:
    """Run a graph whose steps name these models; stop all at the end.

    Args:
        models: by name. They are made before there is a loop, and started on one.
        spec: of the graph, each step without its ``url``: the model of its name, or of ``model``.
        ready: wait until it is.
        settings: of the proxy.
    """
    started: Future[RunningGraph] = Future()
    stop = threading.Event()

    async def serve() -> None:
        addresses = {name: await model.start(Address("127.0.0.1", 0)) for name, model in models.items()}
        proxy = Proxy(_settings(models, addresses, spec, settings))
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(proxy.run())
        running = RunningGraph(models, proxy, loop)
        with suppress(TimeoutError):
            async with asyncio.timeout(10 if ready else 0):
                await proxy.link.started.wait()
        if ready and not proxy.link.ready:
            started.set_exception(AssertionError(f"the graph is not ready: {proxy.link.reason}"))
        else:
            started.set_result(running)
            await asyncio.to_thread(stop.wait)
        proxy.stop()
        await task
        for model in models.values():
            model.gate.set()
            await model.stop()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="graph")
    thread.start()
    try:
        yield started.result(20)
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive(), "the graph did not stop"


def _settings(
    models: Mapping[str, FakeRuntime], addresses: Mapping[str, Address], spec: Mapping[str, Any], more: Any
) -> Settings:
    steps = []
    for step in spec["steps"]:
        model = step.get("model", step["name"])
        url = f"http://{addresses[model]}/v2/models/{models[model].name}"
        steps.append({"url": url, **{name: value for name, value in step.items() if name != "model"}})
    graph = json.dumps({**spec, "steps": steps})
    settings = Settings.from_env({"SHOAL_PROXY_GRAPH": graph, "SHOAL_MODEL_NAME": "graph"})
    anywhere = TcpAddress("127.0.0.1", 0)
    return arranged(settings, listen=anywhere, admin_listen=anywhere, drain_timeout_seconds=5.0, **more)
