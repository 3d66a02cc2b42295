"""Asks registries which version a moving name stands for, beside the looks: none of them waits for an answer."""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import aiohttp

from shoal_operator.manifests.origin import registry
from shoal_operator.planning.naming import Naming, is_of_model, is_version_of, pause_s, stored_version
from shoal_operator.planning.observation import Key
from shoal_schema.declaring import Json
from shoal_schema.resource.credentials import fault
from shoal_schema.resource.locations import (
    REDIRECTS,
    LocationError,
    Question,
    moves,
    question,
    refusal,
    scheme_of,
    sent_on,
    shown,
)

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""Of one name, with all the questions that it takes."""
_AT_A_TIME = 8
"""Names, of one registry."""
_MOST_QUESTIONS = 3
_MOST_REDIRECTS = 3
MAX_BODY_BYTES = 2**22
"""The hub tells a repository's files beside its commit."""
_REMEDY = (
    ". The operator asks with its own environment (the chart's value env), never with model.secretName: give it there,"
    " or write the version in model.uri (hf://OWNER/NAME@COMMIT, models:/NAME/VERSION)"
)
_UNTRUSTED = (
    ": its TLS certificate is not trusted. Name the file of its authority in SSL_CERT_FILE of the operator (the chart's"
    " value env), or write the version in model.uri"
)

Ask = Callable[[str], Awaitable[str]]


@dataclass(slots=True)
class _Service:
    """What one service was told; ``since_s``: an answer to a question that was sent before counts for another spec."""

    naming: Naming
    since_s: float | None = None


@dataclass(slots=True)
class _Name:
    """What the last question about a name brought, for all services that wait for it."""

    answer: Naming
    sent_s: float = float("-inf")
    due_s: float = float("-inf")
    failures: int = 0
    task: asyncio.Task[None] | None = None
    services: set[Key] = field(default_factory=set)


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
        self._services: dict[Key, _Service] = {}
        self._names: dict[str, _Name] = {}
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_A_TIME))

    def naming(self, key: Key, resource: Json, uri: str | None, *, follows: bool) -> Naming | None:
        """Return what is known of a service's name now, and ask where it is time; None of one that does not move.

        Raises:
            LocationError: the URI names no model.
        """
        if uri is None or not moves(uri):
            self.forget(key)
            return None
        known = self._services.get(key)
        if known is None or known.naming.uri != uri:
            self.forget(key)
            known = self._services[key] = _Service(Naming(uri, stored_version(resource, uri)))
        if follows or not known.naming.resolved:
            if known.since_s is None:
                known.since_s = self._clock()
            name = self._names.setdefault(known.naming.uri, _Name(Naming(known.naming.uri)))
            name.services.add(key)
            if name.task is None and name.sent_s >= known.since_s:
                known.naming = replace(name.answer, resolved=name.answer.resolved or known.naming.resolved)
        if follows or not known.naming.resolved:
            name = self._names[known.naming.uri]
            answered = known.since_s is not None and name.sent_s >= known.since_s
            if name.task is None and answered and (wait_s := name.due_s - self._clock()) > 0:
                self._mark(key, wait_s)
            elif name.task is None:
                name.task = asyncio.create_task(self._learn(known.naming.uri, name))
            return known.naming
        self._leave(key, known)
        return Naming(uri, known.naming.resolved)  # what was in vain matters no more

    def registry(self, uri: str) -> Mapping[str, str]:
        """Return the variables that tell a pod where the registry of ``uri`` is."""
        return registry(uri, self._environment)

    def forget(self, key: Key) -> None:
        """Stop asking for a service."""
        if known := self._services.pop(key, None):
            self._leave(key, known)

    async def close(self) -> None:
        """Stop asking."""
        tasks = [name.task for name in self._names.values() if name.task]
        for key in list(self._services):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self, key: Key, known: _Service) -> None:
        known.since_s = None
        name = self._names.get(known.naming.uri)
        if name is None or key not in name.services:
            return
        name.services.remove(key)
        if not name.services:
            del self._names[known.naming.uri]
            if name.task:
                name.task.cancel()

    async def _learn(self, uri: str, name: _Name) -> None:
        try:
            async with self._slots[scheme_of(uri)]:
                name.sent_s = self._clock()
                async with asyncio.timeout(_TIMEOUT_S):
                    name.answer = Naming(uri, await self._ask(uri))
            name.failures = 0
        except Exception as error:  # whatever a registry says is told, and stops nothing
            name.failures += 1
            name.answer = Naming(uri, problem=_sentence(uri, error))
            logger.warning("event=not_resolved uri=%s error=%s", uri, name.answer.problem)
        finally:
            name.task = None
            name.due_s = self._clock() + pause_s(name.failures, self._interval_s)
        for key in name.services:
            self._mark(key, 0.0)


class Registries:
    """Asks the hub and an MLflow server, with the credentials of the operator's own environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
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
            found = asked.answer(await self._get(found, asked))
            if not is_of_model(found, uri):
                break
        if not is_version_of(found, uri):
            raise LocationError(f"the registry's answer names no version of {uri}")
        return found

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _question(self, uri: str) -> Question | None:
        if wrong := fault(scheme_of(uri), self._environment):
            raise LocationError(f"{shown(uri)} cannot be resolved: {wrong}{_REMEDY}")
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
            body = await self._body(uri, asked, self._session)
        except (aiohttp.ClientError, OSError) as error:
            untrusted = isinstance(error, aiohttp.ClientConnectorCertificateError)
            why = f"{server} cannot be reached ({type(error).__name__}){_UNTRUSTED if untrusted else ''}"
            raise LocationError(f"{shown(uri)} cannot be resolved: {why}") from None
        try:
            return json.loads(body)
        except ValueError:
            raise LocationError(f"{server} does not answer in JSON: is it a registry?") from None

    async def _body(self, uri: str, asked: Question, session: aiohttp.ClientSession) -> bytes:
        """Return the body of a good answer, which the asked server may keep under another of its own addresses."""
        url = asked.url
        for _ in range(_MOST_REDIRECTS):
            async with session.get(url, headers=dict(asked.headers), allow_redirects=False) as answer:
                if answer.status == 200:
                    body = bytearray()
                    async for piece in answer.content.iter_any():
                        body += piece
                        if len(body) > MAX_BODY_BYTES:
                            raise LocationError("the registry's answer is too long")
                    return bytes(body)
                if answer.status not in REDIRECTS or "location" not in answer.headers:
                    remedy = _REMEDY if answer.status in (401, 403) else ""
                    raise LocationError(f"{refusal(uri, answer.status)}{remedy}")
                url = sent_on(uri, url, answer.headers["location"])
        raise LocationError(f"{shown(uri)} cannot be resolved: {urlsplit(url).netloc} sends on and on")


def _sentence(uri: str, error: Exception) -> str:
    """Return why a name is not resolved, in words that stay the same while the reason does."""
    if isinstance(error, LocationError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"{shown(uri)} cannot be resolved: the registry did not answer within {_TIMEOUT_S:g} s"
    return f"{shown(uri)} cannot be resolved: {type(error).__name__}"
