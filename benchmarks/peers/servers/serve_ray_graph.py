"""Ray Serve: two models composed by handles, `serve.batch` in each, a deployment of its own before them."""

import signal

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request

from benchmarks.peers.servers.serve_ray import JOB, Model, start

deployment = serve.deployment(
    max_ongoing_requests=JOB.settings["max_ongoing_requests"],
    logging_config={"enable_access_log": False, "log_level": "ERROR"},
)


@deployment
class Chain:
    """JSON objects in, JSON objects out."""

    def __init__(self, first: DeploymentHandle, second: DeploymentHandle) -> None:
        self._first, self._second = first, second

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        """Take one row through both models, as Ray's own pages compose them."""
        row = (await request.json())["x"]
        return {"y": await self._second.answer.remote(self._first.answer.remote(row))}


def main() -> None:
    """Serve until stopped."""
    start(4)
    first, second = (deployment(Model).options(name=name).bind() for name in ("first", "second"))
    serve.run(Chain.bind(first, second), name="graph", route_prefix="/")  # type: ignore[attr-defined]
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()


if __name__ == "__main__":
    main()
