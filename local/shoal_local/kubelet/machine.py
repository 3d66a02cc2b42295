"""Resources that all pods of a node share: addresses, devices, the image table, and objects from the API."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import yaml

from shoal_local.api_client import ApiClient
from shoal_local.events import EventRecorder
from shoal_local.kubelet.images import BadTableError, Image, Table, default_table, parse_table
from shoal_local.kubelet.probing import ProbeClient
from shoal_local.kubelet.records import Models
from shoal_local.kubelet.variables import REFERENCES, Objects, name_in
from shoal_local.objects import Object

ROOT_CERTIFICATE = "kube-root-ca.crt"
TOKEN_LIFETIME_S = 365 * 86400
"""A year: tokens are not renewed while a pod runs. A Kubernetes API server may shorten it."""


async def referenced_objects(client: ApiClient, pod: Object) -> Objects:
    """Return the ConfigMaps and Secrets to which a pod refers."""
    space = pod["metadata"]["namespace"]
    # Every pod mounts the certificate of the API server.
    named = {("ConfigMap", ROOT_CERTIFICATE), *_named_in(pod["spec"])}
    return {(kind, name): await client.find(kind, space, name) for kind, name in sorted(named)}


async def account_token(client: ApiClient, pod: Object, source: Object) -> str:
    """Return a token for the pod's service account; ``source`` is its volume source."""
    meta = {"name": pod["spec"].get("serviceAccountName") or "default", "namespace": pod["metadata"]["namespace"]}
    spec: Object = {"expirationSeconds": TOKEN_LIFETIME_S}
    if source.get("audience"):
        spec["audiences"] = [source["audience"]]
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": meta, "spec": spec}
    made = await client.post("ServiceAccount", request, "token")
    return str(made["status"]["token"])


def _named_in(part: Any) -> set[tuple[str, str]]:
    """Return kind and name of each ConfigMap and Secret anywhere in a part of a spec."""
    if isinstance(part, list):
        return set().union(*map(_named_in, part))
    if not isinstance(part, dict):
        return set()
    found = set().union(*map(_named_in, part.values()))
    for field in REFERENCES.keys() & part.keys():
        if isinstance(part[field], dict) and (name := name_in(part[field])):
            found.add((REFERENCES[field], name))
    return found


_PASSED_ON = """
HOME LANG LC_ALL LD_LIBRARY_PATH PYTHONPATH TZ USER VIRTUAL_ENV http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY
NO_PROXY
"""
"""Variables of this machine that containers inherit."""
MODELS = "/models"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
"""This machine's, as Kubernetes and OCI images name it."""


class Images:
    """The image table: Shoal's entries and the entries of the user's file, which is read at each use."""

    def __init__(self, file: Path, models: Models) -> None:
        self.file = file
        self._models = models

    def table(self) -> Table:
        """Return the table. Raises BadTableError: the user's file is invalid; the message names the line."""
        models = {f"{MODELS}/{name}": directory for name, directory in self._models.directories().items()}
        # The user's entries override Shoal's.
        return {**default_table(sys.executable, models), **_read_table(self.file)}


def _read_table(file: Path) -> dict[str, Image]:
    try:
        text = file.read_text()
        document, root = yaml.safe_load(text), yaml.compose(text, Loader=yaml.SafeLoader)
    except FileNotFoundError:
        return {}
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadTableError(f"{file}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise BadTableError(f"{file}: {error}") from None
    if document is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise BadTableError(f"{file}, line 1: expected a mapping of image names")
    # The composed nodes have line numbers, the loaded document has none.
    lines = {key.value: key.start_mark.line + 1 for key, _ in root.value}
    table: dict[str, Image] = {}
    for name, entry in document.items():
        try:
            table |= parse_table({str(name): entry})
        except BadTableError as error:
            raise BadTableError(f"{file}, line {lines.get(str(name), 1)}: {error}") from None
    return table


class AddressPool:
    """A pool of pod addresses in a network."""

    def __init__(self, network: IPv4Network) -> None:
        self._network = network
        self._taken: dict[str, str] = {}
        self._next = 2

    def reserve(self, uid: str, address: str) -> None:
        """Record the address of an adopted pod."""
        self._taken[uid] = address

    def acquire(self, uid: str) -> str:
        """Return the pod's address; a new pod gets the address that has been unused for longest."""
        if uid in self._taken:
            return self._taken[uid]
        used = set(self._taken.values())
        # The network, its first host and the broadcast address are left out.
        size = self._network.num_addresses - 3
        for _ in range(size):
            address = str(self._network[self._next])
            self._next = 2 + (self._next - 1) % size
            if address not in used:
                self._taken[uid] = address
                return address
        raise OSError(f"no free address in {self._network}. Pass a larger --pod-cidr")

    def release(self, uid: str) -> None:
        """Free the pod's address."""
        self._taken.pop(uid, None)


class Devices:
    """The devices of this node, assigned to containers by number."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._taken: dict[tuple[str, str], dict[str, list[int]]] = {}

    def reserve(self, uid: str, name: str, devices: dict[str, list[int]]) -> None:
        """Record the devices of an adopted container."""
        self._taken[uid, name] = devices

    def acquire(self, uid: str, name: str, container: Object) -> dict[str, list[int]]:
        """Return the numbers of the container's devices by resource.

        Raises OSError: fewer are free than requested; the scheduler should not have bound the pod.
        """
        if (uid, name) not in self._taken:
            limits = (container.get("resources") or {}).get("limits") or {}
            acquired: dict[str, list[int]] = {}
            for resource, count in self._counts.items():
                if resource in limits:
                    wanted = int(limits[resource])
                    used = {n for held in self._taken.values() for n in held.get(resource, [])}
                    free = [n for n in range(count) if n not in used]
                    if len(free) < wanted:
                        raise OSError(f"{wanted} of {resource} requested, only {len(free)} free")
                    acquired[resource] = free[:wanted]
            self._taken[uid, name] = acquired
        return self._taken[uid, name]

    def release(self, uid: str) -> None:
        """Free the devices of all containers of a pod."""
        self._taken = {key: held for key, held in self._taken.items() if key[0] != uid}


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources that all pods of a node share."""

    client: ApiClient
    recorder: EventRecorder
    probe_client: ProbeClient
    images: Images
    addresses: AddressPool
    devices: Devices
    root: Path
    """Directory of the pods' records."""
    host_ip: str
    node_name: str
    hosts: Path
    """The file that containers see as ``/etc/hosts``."""
    mounts: bool
    """Whether volumes are mounted at their mount paths; otherwise containers get their directories' paths."""


def base_environment() -> dict[str, str]:
    """Return the environment variables that containers inherit."""
    found = {name: os.environ[name] for name in _PASSED_ON.split() if name in os.environ}
    if "PYTHONPATH" in found:
        # Containers start in another directory, so relative entries would be lost.
        parts = found["PYTHONPATH"].split(":")
        found["PYTHONPATH"] = ":".join(str(Path(part).absolute()) for part in parts)
    # `python` in a container is this interpreter.
    own = str(Path(sys.executable).parent)
    return {**found, "PATH": f"{own}:{os.environ.get('PATH', os.defpath)}"}
