"""The kinds that the controllers watch."""

import asyncio

from shoal_local.api_client import DEPLOYMENTS, ENDPOINT_SLICES, NODES, PODS, REPLICA_SETS, SERVICES, ApiClient
from shoal_local.informer import Informer


class Sources:
    """One informer for each kind; none runs yet."""

    def __init__(self, client: ApiClient) -> None:
        self.deployments = Informer(client, DEPLOYMENTS)
        self.replica_sets = Informer(client, REPLICA_SETS)
        self.pods = Informer(client, PODS)
        self.services = Informer(client, SERVICES)
        self.slices = Informer(client, ENDPOINT_SLICES)
        self.nodes = Informer(client, NODES)
        self.all = [self.deployments, self.replica_sets, self.pods, self.services, self.slices, self.nodes]

    async def synced(self) -> None:
        """Return once each informer has its first list. A plan made before would be made blindly."""
        await asyncio.gather(*(informer.synced.wait() for informer in self.all))
