"""Discovery of kinds that are installed while the operator runs.

The operator polls, because it may have no permission to watch CustomResourceDefinitions.
"""

import asyncio
import logging
from collections.abc import Callable

from kopf import Resource

# kopf accepts it as an argument but does not export it; kopf is pinned to its minor version.
from kopf._cogs.structs.references import Insights

from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.manifests.desired import HPA, HTTP_ROUTE, SCALED_OBJECT, Kind
from shoal_operator.manifests.job import RAY_JOB
from shoal_schema.resource import API_VERSION, BATCH_KIND, BATCH_PLURAL, GRAPH_KIND, GRAPH_PLURAL

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
BATCHES = Kind(BATCH_KIND, API_VERSION, BATCH_PLURAL)
GRAPHS = Kind(GRAPH_KIND, API_VERSION, GRAPH_PLURAL)
OPTIONAL_KINDS = (HTTP_ROUTE, HPA, SCALED_OBJECT, GRAPHS, BATCHES, RAY_JOB)
"""Kinds that may not be installed in the cluster."""


class Discovery:
    """Poller that starts watches of optional kinds when they are installed.

    Args:
        found: called after a new kind was found.
    """

    def __init__(self, found: Callable[[], None]) -> None:
        self.insights = Insights()
        """The kinds that kopf watches."""
        self._found = found

    async def run(self, cluster: Cluster) -> None:
        """Poll the API server for optional kinds until cancelled."""
        # kopf's own scan comes first.
        await self.insights.ready_resources.wait()
        while True:
            for kind in OPTIONAL_KINDS:
                group, _, _ = kind.api_version.rpartition("/")
                watched = {(each.group, each.plural) for each in self.insights.watched_resources}
                if (group, kind.plural) not in watched:
                    await self._discover(cluster, kind)
            await asyncio.sleep(INTERVAL_S)

    async def _discover(self, cluster: Cluster, kind: Kind) -> None:
        try:
            served = await cluster.read_kinds(kind.api_version)
        except ApiError as error:
            logger.warning("event=discovery_failed kind=%s error=%s", kind.kind, error)
            return
        for each in served:
            if each.get("name") == kind.plural:
                # Add the kind to kopf's watched resources, in the form in which kopf scans them at its start.
                logger.info("event=kind_found kind=%s found=true", kind.kind)
                async with self.insights.revised:
                    group, _, version = kind.api_version.rpartition("/")
                    self.insights.watched_resources.add(
                        Resource(
                            group=group,
                            version=version,
                            plural=kind.plural,
                            kind=kind.kind,
                            singular=each.get("singularName"),
                            namespaced=True,
                            verbs=frozenset(each.get("verbs", ())),
                        )
                    )
                    self.insights.revised.notify_all()
                self._found()
