"""Asks registries which version a moving name stands for, beside the looks: none of them waits for an answer."""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from shoal_operator.manifests.origin import registry
from shoal_operator.planning.naming import Naming, is_version_of, pause_s, stored_version
from shoal_operator.planning.observation import Key
from shoal_schema.declaring import Json
from shoal_schema.resource.locations import LocationError, Question, moves, question, refusal, shown

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""Of one name, with all the questions that it takes."""
_AT_A_TIME = 8
"""Questions to one registry."""
_MOST_QUESTIONS = 3
MAX_BODY_BYTES = 2**22
"""The hub tells a repository's files beside its commit."""
_REMEDY = (
    ". The operator asks with its own environment (the chart's value env), never with model.secretName: give it there,"
    " or write the version in model.uri (hf://OWNER/NAME@COMMIT, models:/NAME/VERSION)"
)

Ask = Callable[[str], Awaitable[str]]


@dataclass(slots=True)
class _Asked:
    naming: Naming
    due_s: float
    failures: int = 0
    task: asyncio.Task[None] | None = None


class Resolver:
    """Knows what names stand for, and asks where that is not known, or is to be followed.

    Args:
        ask: returns the version that a name stands for; raises LocationError with a sentence where it cannot.
        mark: makes a service due after a delay (s).
        clock: monotonic seconds.
        interval_s: between two questions about a name that is followed.
        environment: where the operator finds registries.
    """

    def __init__(
        self,
        ask: Ask,
        mark: Callable[[Key, float], None],
        clock: Callable[[], float],
        *,
        interval_s: float,
        environment: Mapping[str, str],
    ) -> None:
        self._ask = ask
        self._mark = mark
        self._clock = clock
        self._interval_s = interval_s
        self._environment = environment
        self._asked: dict[Key, _Asked] = {}

    def naming(self, key: Key, resource: Json, uri: str | None, *, follows: bool) -> Naming | None:
        """Return what is known of a service's name now, and ask where it is time; None of one that does not move.

        Raises:
            LocationError: the URI names no model.
        """
        if uri is None or not moves(uri):
            self.forget(key)
            return None
        known = self._asked.get(key)
        if known is None or known.naming.uri != uri:
            self.forget(key)
            known = self._asked[key] = _Asked(Naming(uri, stored_version(resource, uri)), due_s=self._clock())
        asks = follows or not known.naming.resolved
        if asks and known.task is None:
            self._ask_in_time(key, known)
        return known.naming if asks else Naming(uri, known.naming.resolved)  # what was in vain matters no more

    def registry(self, uri: str) -> Mapping[str, str]:
        """Return the variables that tell a pod where the registry of ``uri`` is."""
        return registry(uri, self._environment)

    def forget(self, key: Key) -> None:
        """Stop asking for a service."""
        if (known := self._asked.pop(key, None)) and known.task:
            known.task.cancel()

    async def close(self) -> None:
        """Stop asking."""
        tasks = [known.task for known in self._asked.values() if known.task]
        for key in list(self._asked):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ask_in_time(self, key: Key, known: _Asked) -> None:
        if (wait_s := known.due_s - self._clock()) > 0:
            self._mark(key, wait_s)
        else:
            known.task = asyncio.create_task(self._learn(key, known))

    async def _learn(self, key: Key, known: _Asked) -> None:
        uri = known.naming.uri
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                known.naming = Naming(uri, await self._ask(uri))
            known.failures = 0
        except Exception as error:  # whatever a registry says is told, and stops nothing
            known.failures += 1
            known.naming = Naming(uri, known.naming.resolved, _sentence(uri, error))
            logger.warning("event=not_resolved service=%s uri=%s error=%s", key, uri, known.naming.problem)
        finally:
            known.task = None
            known.due_s = self._clock() + pause_s(known.failures, self._interval_s)
        self._mark(key, 0.0)


class Registries:
    """Asks the hub and an MLflow server, with the credentials of the operator's own environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._limits: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_A_TIME))
        self._session: aiohttp.ClientSession | None = None

    async def resolve(self, uri: str) -> str:
        """Return the version that a name stands for.

        Raises:
            LocationError: the registry does not tell one, or cannot be asked.
        """
        found = uri
        for _ in range(_MOST_QUESTIONS):
            asked = self._question(found)
            if asked is None or not moves(found):
                break
            async with self._limits[urlsplit(asked.url).netloc]:
                found = asked.answer(await self._get(found, asked))
        if not is_version_of(found, uri):
            raise LocationError(f"the registry's answer names no version of {uri}")
        return found

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _question(self, uri: str) -> Question | None:
        try:
            return question(uri, self._environment)
        except LocationError as error:
            raise LocationError(f"{error}{_REMEDY}") from None

    async def _get(self, uri: str, asked: Question) -> object:
        if self._session is None:
            # Proxies and certificates as the environment says; aiohttp hands credentials to no other host.
            self._session = aiohttp.ClientSession(trust_env=True, cookie_jar=aiohttp.DummyCookieJar())
        server = urlsplit(asked.url).netloc
        try:
            async with self._session.get(asked.url, headers=dict(asked.headers), max_redirects=3) as answer:
                if answer.status != 200:
                    remedy = _REMEDY if answer.status in (401, 403) else ""
                    raise LocationError(f"{refusal(uri, answer.status)}{remedy}")
                return json.loads(await _whole(answer.content))
        except ValueError as error:
            told = isinstance(error, LocationError)
            raise LocationError(
                str(error) if told else f"{server} does not answer in JSON: is it a registry?"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            why = f"{server} cannot be reached ({type(error).__name__})"
            raise LocationError(f"{shown(uri)} cannot be resolved: {why}") from None


async def _whole(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for piece in content.iter_any():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise LocationError("the registry's answer is too long")
    return bytes(body)


def _sentence(uri: str, error: Exception) -> str:
    """Return why a name is not resolved, in words that stay the same while the reason does."""
    if isinstance(error, LocationError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"{shown(uri)} cannot be resolved: the registry did not answer within {_TIMEOUT_S:g} s"
    return f"{shown(uri)} cannot be resolved: {type(error).__name__}"
