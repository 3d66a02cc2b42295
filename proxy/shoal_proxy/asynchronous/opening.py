"""The asynchronous requests that settings configure, with their store."""

from typing import TYPE_CHECKING
from uuid import uuid4

from shoal_proxy.asynchronous.execution import AsyncRequests
from shoal_proxy.asynchronous.interfaces import JobRunner
from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.settings import Settings
from shoal_schema.process.environment import SettingsError

if TYPE_CHECKING:
    from shoal_proxy.asynchronous.recovery import Recovery
    from shoal_proxy.asynchronous.store import JobStore


def open_asynchronous(
    settings: Settings, dispatcher: Dispatcher, metrics: Metrics, runner: JobRunner
) -> "tuple[AsyncRequests | None, Recovery | None]":
    """Return the asynchronous requests, and their recovery; None for what is not configured.

    Raises:
        SettingsError: the store cannot be opened.
    """
    if not settings.has_asynchronous:
        return None, None
    store = _open_store(settings, dispatcher.instance.decode())
    requests = AsyncRequests(settings, dispatcher, metrics, runner, store)
    if store is None:
        return requests, None
    from shoal_proxy.asynchronous import recovery  # noqa: PLC0415 (obstore is an extra)

    limits = settings.asynchronous
    return requests, recovery.Recovery(
        store,
        requests,
        idempotent=settings.batching.idempotent,
        timeout_s=limits.timeout_seconds,
        result_s=limits.result_seconds,
    )


def _open_store(settings: Settings, instance: str) -> "JobStore | None":
    if not (uri := settings.async_store.uri):
        return None
    try:
        from shoal_proxy.asynchronous.store import JobStore  # noqa: PLC0415 (obstore is an extra)
    except ModuleNotFoundError as error:
        raise SettingsError(f"SHOAL_ASYNC_STORE needs {error.name}: pip install 'shoal[s3]'") from None
    return JobStore(uri, settings.name, f"{instance}.{uuid4().hex[:8]}")
