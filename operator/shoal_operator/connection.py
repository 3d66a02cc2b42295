"""How the operator reaches the API server: a service account, or a kubeconfig file."""

import dataclasses
import logging
import os
from collections.abc import Callable

import kopf

from shoal_schema.environment import SettingsError

logger = logging.getLogger(__name__)


def connect() -> kopf.ConnectionInfo:
    """Return the address and the credentials: of ``$KUBECONFIG`` if set, else of the pod.

    Read anew at each call, since a service account's token changes every hour.

    Raises:
        SettingsError: there is neither.
    """
    settings = kopf.OperatorSettings()
    for login in (_from_kubeconfig, _from_pod):
        if info := login(settings=settings, logger=logger):
            return info
    raise SettingsError("no API server to talk to: run in a pod with a service account, or give --kubeconfig FILE")


def _from_pod(**kwargs: object) -> kopf.ConnectionInfo | None:
    login: Callable[..., kopf.ConnectionInfo | None] = kopf.login_with_service_account
    info = login(**kwargs)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
    if info is None or not host:
        return info
    # Every pod is told the address; kopf asks for it by name, which needs a cluster DNS that works already.
    bracketed = f"[{host}]" if ":" in host else host
    return dataclasses.replace(info, server=f"https://{bracketed}:{port}")


def _from_kubeconfig(**kwargs: object) -> kopf.ConnectionInfo | None:
    login: Callable[..., kopf.ConnectionInfo | None] = kopf.login_with_kubeconfig
    try:
        return login(**kwargs)
    except (OSError, kopf.LoginError, KeyError) as error:
        raise SettingsError(f"the kubeconfig cannot be used: {error}") from error
