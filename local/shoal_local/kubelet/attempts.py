"""Carries out what probes and hooks ask for: an HTTP request, a connection, a command."""

import asyncio
from pathlib import Path
from typing import Any

import httpx

from shoal_local.kubelet.runs import SHIM, SHIM_ENVIRONMENT

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

    async def make(self, handler: Object, folder: Path, address: str, container: Object, timeout_s: float) -> str:
        """Return '' when the handler's action succeeds, else what went wrong."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._make(handler, folder, address, container)
        except TimeoutError:
            return f"timed out after {timeout_s:g} s"
        except (OSError, httpx.HTTPError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    async def _make(self, handler: Object, folder: Path, address: str, container: Object) -> str:
        if "httpGet" in handler:
            return await self._get(handler["httpGet"], address, container)
        if "tcpSocket" in handler:
            return await _connect(handler["tcpSocket"], address, container)
        if "exec" in handler:
            return await _execute(handler["exec"].get("command") or [], folder)
        if "sleep" in handler:
            await asyncio.sleep(handler["sleep"]["seconds"])
            return ""
        return f"{', '.join(handler)} is not supported by the kubelet of shoal local"

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


async def _connect(spec: Object, address: str, container: Object) -> str:
    host = spec.get("host") or address
    _, writer = await asyncio.open_connection(host, _port(spec["port"], container))
    writer.close()
    return ""


async def _execute(command: list[str], folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *SHIM,
        "exec",
        str(folder),
        *command,
        env=SHIM_ENVIRONMENT,
        cwd="/",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        out, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode == 0:
        return ""
    told = out.decode(errors="replace").strip()[-500:]
    return f"command exited with {process.returncode}: {told}"
