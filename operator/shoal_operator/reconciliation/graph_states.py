"""Validity of graphs, read from their pods in the background."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.scaling.scraper import Scraper
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.interfaces.load import GRAPH_VALID, GraphState

_INTERVAL_S = 2.0


@dataclass(slots=True)
class ReportedGraph:
    """The reports of one graph's pods."""

    states: Mapping[str, GraphState] = field(default_factory=dict)
    uids: frozenset[str] = frozenset()
    """Pods that the task reads."""
    task: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Stop reading the pods."""
        if self.task is not None:
            self.task.cancel()


class GraphStates:
    """Validity of each graph, as the graph's pods reported it last.

    Args:
        scraper: reads the pods.
        records: states of all graphs.
        mark: schedules a graph's reconciliation after a delay (s), called when its state changes.
    """

    def __init__(self, scraper: Scraper, records: Records, mark: Callable[[Key, float], object]) -> None:
        self._scraper = scraper
        self._records = records
        self._mark = mark

    def latest(self, key: Key, replicas: Sequence[Replica]) -> Mapping[str, GraphState]:
        """Return, by uid, the states that the pods reported last.

        The pods are read in the background until all of them report a valid graph.
        """
        graph = self._records.get(key, ReportedGraph)
        uids = frozenset(replica.uid for replica in replicas)
        if graph.task is None or graph.task.done() or graph.uids != uids:
            graph.close()
            graph.uids = uids
            graph.task = asyncio.create_task(self._follow(key, graph, replicas)) if replicas else None
        return {uid: state for uid, state in graph.states.items() if uid in uids}

    async def close(self) -> None:
        """Stop all reads and close the connections to pods."""
        self._records.remove_all(ReportedGraph)
        await self._scraper.close()

    async def _follow(self, key: Key, graph: ReportedGraph, replicas: Sequence[Replica]) -> None:
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
