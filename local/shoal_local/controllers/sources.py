"""The kinds that the controllers watch."""

import asyncio
from dataclasses import dataclass

from shoal_local.api_client import DEPLOYMENTS, ENDPOINT_SLICES, NODES, PDBS, PODS, REPLICA_SETS, SERVICES, ApiClient
from shoal_local.informer import Informer


@dataclass(frozen=True, slots=True)
class Sources:
    """One informer for each kind."""

    deployments: Informer
    replica_sets: Informer
    pods: Informer
    services: Informer
    slices: Informer
    budgets: Informer
    nodes: Informer

    @property
    def all(self) -> list[Informer]:
        """Return the informers."""
        return [self.deployments, self.replica_sets, self.pods, self.services, self.slices, self.budgets, self.nodes]

    async def synced(self) -> None:
        """Return once each informer has its first list. A plan made before would be made blindly."""
        await asyncio.gather(*(informer.synced.wait() for informer in self.all))


def make_sources(client: ApiClient) -> Sources:
    """Return informers that do not run yet."""
    return Sources(
        Informer(client, DEPLOYMENTS),
        Informer(client, REPLICA_SETS),
        Informer(client, PODS),
        Informer(client, SERVICES),
        Informer(client, ENDPOINT_SLICES),
        Informer(client, PDBS),
        Informer(client, NODES),
    )
