"""Runs the garbage collector when something happened that may leave garbage."""

import asyncio
import logging
from datetime import UTC, datetime

from shoal_local.apiserver.storage.store import Change, Verb
from shoal_local.apiserver.verbs.collecting import Pass
from shoal_local.apiserver.verbs.world import World

LOG = logging.getLogger(__name__)
PAUSE_S = 0.02
"""Between two passes, so that a burst of changes costs few of them."""
LONGEST_REST_S = 60.0
"""A pass is made after this time even if nothing asked for one: events grow old."""


class Housekeeping:
    """Notices what may leave garbage, and collects it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._needed = asyncio.Event()
        self._needed.set()

    def notice(self, change: Change) -> None:
        """Remember that a pass is needed, if the change asks for one."""
        meta = change.object["metadata"]
        if change.verb is Verb.DELETED or meta.get("deletionTimestamp") or meta.get("ownerReferences"):
            self._needed.set()

    async def run(self) -> None:
        """Make passes until cancelled."""
        while True:
            try:
                async with asyncio.timeout(LONGEST_REST_S):
                    await self._needed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(PAUSE_S)
            self._needed.clear()
            try:
                Pass(self._world, datetime.now(UTC)).run()
            except Exception:
                # One object that nobody foresaw must not end the collection of all others.
                LOG.exception("a pass of the garbage collector failed; it is tried again")
