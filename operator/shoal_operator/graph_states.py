"""Validity of graphs, read from their pods in the background."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal_operator.load.service_cache import Replica
from shoal_operator.planning.observation import Key
from shoal_operator.scraper import Scraper
from shoal_schema.load import GRAPH_VALID, GraphState

_INTERVAL_S = 2.0


@dataclass(slots=True)
class _Graph:
    states: Mapping[str, GraphState] = field(default_factory=dict)
    uids: frozenset[str] = frozenset()
    """Pods that the task reads."""
    task: asyncio.Task[None] | None = None


class GraphStates:
    """Validity of each graph, as the graph's pods reported it last.

    Args:
        scraper: reads the pods.
        mark: schedules a graph's reconciliation after a delay (s), called when its state changes.
    """

    def __init__(self, scraper: Scraper, mark: Callable[[Key, float], object]) -> None:
        self._scraper = scraper
        self._mark = mark
        self._graphs: dict[Key, _Graph] = {}

    def latest(self, key: Key, replicas: Sequence[Replica]) -> Mapping[str, GraphState]:
        """Return the pods' last states by uid; keep reading until all are valid."""
        graph = self._graphs.setdefault(key, _Graph())
        uids = frozenset(replica.uid for replica in replicas)
        if graph.task is None or graph.task.done() or graph.uids != uids:
            self._stop(graph)
            graph.uids = uids
            graph.task = asyncio.create_task(self._follow(key, graph, replicas)) if replicas else None
        return {uid: state for uid, state in graph.states.items() if uid in uids}

    def forget(self, key: Key) -> None:
        """Stop reading the pods of a graph."""
        if (graph := self._graphs.pop(key, None)) is not None:
            self._stop(graph)

    async def close(self) -> None:
        """Stop all reads and close the connections to pods."""
        for key in list(self._graphs):
            self.forget(key)
        await self._scraper.close()

    def _stop(self, graph: _Graph) -> None:
        if graph.task is not None:
            graph.task.cancel()

    async def _follow(self, key: Key, graph: _Graph, replicas: Sequence[Replica]) -> None:
        while True:
            readings = await self._scraper.read(replicas)
            pairs = zip(replicas, readings, strict=True)
            states = {replica.uid: each.load.graph for replica, each in pairs if each.load and each.load.graph}
            if states != graph.states:
                graph.states = states
                self._mark(key, 0.0)
            # Valid graphs stay valid until their pods change.
            if len(states) == len(replicas) and all(each.reason == GRAPH_VALID for each in states.values()):
                return
            await asyncio.sleep(_INTERVAL_S)
