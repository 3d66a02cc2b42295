"""Carries out what probes ask for: an HTTP request."""

import asyncio
from typing import Any

import httpx

Object = dict[str, Any]


class Attempts:
    """Asks containers whether they are well."""

    def __init__(self) -> None:
        # Probes must see what a new caller sees: no kept connections, no proxies, any certificate.
        self._http = httpx.AsyncClient(
            verify=False,
            trust_env=False,
            follow_redirects=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def make(self, probe: Object, address: str, container: Object, timeout_s: float) -> str:
        """Return '' when the probe succeeds, else what went wrong."""
        if "httpGet" not in probe:
            kind = ", ".join(key for key in ("exec", "grpc", "tcpSocket") if key in probe)
            return f"{kind} is not supported by the kubelet of shoal local; httpGet is"
        try:
            async with asyncio.timeout(timeout_s):
                return await self._get(probe["httpGet"], address, container)
        except TimeoutError:
            return f"timed out after {timeout_s:g} s"
        except (OSError, httpx.HTTPError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    async def _get(self, spec: Object, address: str, container: Object) -> str:
        host, scheme = spec.get("host") or address, (spec.get("scheme") or "HTTP").lower()
        path = spec.get("path") or "/"
        url = f"{scheme}://{host}:{_port(spec['port'], container)}/{path.removeprefix('/')}"
        headers = [(h["name"], h["value"]) for h in spec.get("httpHeaders") or []]
        answer = await self._http.get(url, headers=[("user-agent", "kube-probe/shoal"), *headers], timeout=None)
        if 200 <= answer.status_code < 400:
            return ""
        return f"HTTP probe failed with statuscode: {answer.status_code}"


def _port(port: int | str, container: Object) -> int:
    if isinstance(port, int):
        return port
    for offered in container.get("ports") or []:
        if offered.get("name") == port:
            return int(offered["containerPort"])
    raise ValueError(f"the container has no port named {port!r}")
