"""Runs in Ray's environment: a cluster of two nodes on this machine, and a job whose rows go through a model of ours.

    python ray_job.py MODEL FLAG RESULT

2,000 rows, of which five are bad. The second node dies when the first rows are there and each node has its
model, and a third one takes its place; FLAG is written then, for which the model waits at the row 1,000. Writes what
came out into RESULT, as JSON: Ray writes what it likes to the standard output.
"""

import json
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

import shoal.ray

ROWS, BAD = 2000, (3, 700, 701, 1500, 1999)
PATIENCE_S = 300
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


def rows_of(out: Any, kill: Any) -> list[dict[str, Any]]:
    """Return what comes out; ``kill`` is called once the first row is there."""
    rows: list[dict[str, Any]] = []
    for row in out.iter_rows():
        if not rows:
            kill()
        rows.append({name: row[name] for name in ("id", "y", "node", "shoal_error")})
    return rows


def actors_on(node_id: str) -> list[Any]:
    """Return the actors of the job that live on a node."""
    actors = ray._private.state.actors().values()
    return [
        each
        for each in actors
        if each["State"] == "ALIVE" and "MapWorker" in each["ActorClassName"] and each["Address"]["NodeID"] == node_id
    ]


def joined(cluster: Cluster) -> Any:
    """Return a node that has joined; Ray's own wait ends after 30 s, which a busy machine may need."""
    node = cluster.add_node(wait=False, **NODE)
    cluster.wait_for_nodes(timeout=PATIENCE_S)
    return node


def wait_for_models(nodes: Iterable[str]) -> None:
    """Wait until each node has an actor that is there: rows come as soon as the first of them is.

    Raises:
        TimeoutError: one has none.
    """
    ends_s = time.monotonic() + PATIENCE_S
    while without := [node for node in nodes if not actors_on(node)]:
        if time.monotonic() > ends_s:
            raise TimeoutError(f"nodes without a model: {without}")
        time.sleep(0.1)


def main(model: str, flag: str, result_path: str) -> None:
    """Run the job and write what came out."""
    warnings.simplefilter("ignore")
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        second = joined(cluster)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False
        items = [{"id": n, "features": [-1.0 if n in BAD else float(n), 1.0]} for n in range(ROWS)]
        out = ray.data.from_items(items, override_num_blocks=40).map_batches(
            shoal.ray.Model,
            fn_constructor_kwargs={"uri": model, "columns": {"x": "features"}},
            batch_size=64,
            # All that a node has: each node gets one model.
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=2),
        )

        hit: list[Any] = []
        raylet = second.all_processes["raylet"][0].process.pid

        def kill() -> None:
            wait_for_models([node["NodeID"] for node in ray.nodes()])
            hit.extend(actors_on(second.node_id))
            cluster.remove_node(second, allow_graceful=False)
            joined(cluster)
            Path(flag).touch()

        rows = rows_of(out, kill)
        seen = {"rows": rows, "actors_killed": len(hit), "second": str(raylet)}
        Path(result_path).write_text(json.dumps(seen, default=float))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
