"""Results that other replicas hold: they are fetched and deleted for this replica's clients."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

from shoal_proxy.asynchronous.jobs import tag_in, tag_of
from shoal_proxy.dispatch.replicas import RemoteReplicas, ReplicaLink
from shoal_proxy.dispatch.runtime_connection import RuntimeResponse
from shoal_proxy.errors import Overloaded, ProxyError
from shoal_schema.interfaces.headers import FORWARDED
from shoal_schema.interfaces.metrics import RejectionReason

logger = logging.getLogger(__name__)

PEER_S: Final = 5.0
"""Time for a peer's response."""
ASKED_AT_ONCE: Final = 16
"""Peers that are queried at a time for a result whose replica is unknown."""
_MARK: Final = (FORWARDED.encode(), b"1")


class PeerResults:
    """The results at the peers of this replica."""

    def __init__(self, replicas: RemoteReplicas) -> None:
        self._replicas = replicas

    async def find(
        self, method: bytes, job_id: str, credentials: Sequence[tuple[bytes, bytes]]
    ) -> RuntimeResponse | None:
        """Return the response of the peer that has the result of a job; None if no peer has it.

        Args:
            method: ``GET`` or ``DELETE``.
            job_id: the job's id.
            credentials: headers that authenticate the client.

        Raises:
            Overloaded: a peer that may have the result did not respond.
        """
        tag = tag_in(job_id)
        links = self._replicas.links
        # The id names its replica; an id of the activator names none.
        named = [link for link in links if tag and tag_of(link.instance) == tag]
        links = named or links
        failed = False
        for start in range(0, len(links), ASKED_AT_ONCE):
            group = links[start : start + ASKED_AT_ONCE]
            found = await asyncio.gather(*[_request(link, method, job_id, credentials) for link in group])
            for response in found:
                if response is not None and response.status != 404:
                    return response
            failed = failed or None in found
        if failed:
            raise Overloaded(
                "a replica that may hold this result does not respond",
                reason=RejectionReason.CONNECTIONS,
                retry_after_s=1,
            )
        return None


async def _request(
    link: ReplicaLink, method: bytes, job_id: str, credentials: Sequence[tuple[bytes, bytes]]
) -> RuntimeResponse | None:
    """Return a peer's response; None if it does not respond."""
    try:
        return await link.upstream.result(method, job_id, (_MARK, *credentials), time.monotonic() + PEER_S)
    except (ProxyError, TimeoutError):
        return None
    except Exception:  # a foreign server at that address
        logger.exception("event=replica_not_understood kind=peers")
        return None
