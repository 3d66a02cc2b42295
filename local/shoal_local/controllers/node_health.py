"""Marks a node as unreachable when its kubelet no longer renews its lease."""

import asyncio
import logging
from datetime import UTC, datetime

from shoal_local.api_client import LEASES, NODES, STRATEGIC_PATCH, ApiClient, ApiError, Object, UnreachableError
from shoal_local.controllers.plans.reading import condition, stamp
from shoal_local.informer import Informer

LOG = logging.getLogger(__name__)
NAMESPACE = "kube-node-lease"
INTERVAL_S, GRACE_S = 5.0, 40.0


class NodeHealth:
    """Watches over the leases of nodes.

    The age of a lease is counted from when it was last seen to change, on this process's clock;
    pods on a lost node stay, and so do their endpoints: on one machine they most likely still
    serve.
    """

    def __init__(self, client: ApiClient, nodes: Informer) -> None:
        self._client = client
        self._nodes = nodes
        self._seen: dict[str, tuple[str, float]] = {}

    async def run(self) -> None:
        """Look at all nodes again and again, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(INTERVAL_S)
            for node in list(self._nodes.objects.values()):
                try:
                    await self._check(node, clock())
                except (ApiError, UnreachableError) as error:
                    LOG.info("node %s: %s", node["metadata"]["name"], error)

    async def _check(self, node: Object, now_s: float) -> None:
        name = node["metadata"]["name"]
        lease = await self._client.find(LEASES, NAMESPACE, name)
        version = lease["metadata"]["resourceVersion"] if lease else ""
        known, since_s = self._seen.get(name, ("", now_s))
        if known != version:
            since_s = now_s
        self._seen[name] = (version, since_s)
        ready = condition(node, "Ready")
        if now_s - since_s > GRACE_S and ready and ready["status"] != "Unknown":
            await self._mark_lost(node)

    async def _mark_lost(self, node: Object) -> None:
        now = stamp(datetime.now(UTC))
        told = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": now,
        }
        patch = {"status": {"conditions": [told]}}
        await self._client.patch(NODES, node, patch, subresource="status", content_type=STRATEGIC_PATCH)
