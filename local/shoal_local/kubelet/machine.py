"""What all pods of this kubelet share: addresses, devices, the image table, the way to the API."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

import yaml

from shoal_local.api_client import ApiClient
from shoal_local.events import EventRecorder
from shoal_local.kubelet.images import BadTableError, Image, Table, default_table, parse_table, with_files
from shoal_local.kubelet.lookups import Lookups
from shoal_local.kubelet.probing import ProbeClient
from shoal_local.kubelet.records import Models
from shoal_local.objects import Object

_PASSED_ON = """
HOME LANG LC_ALL LD_LIBRARY_PATH PYTHONPATH TZ USER VIRTUAL_ENV http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY
NO_PROXY
"""
MODELS = "/models"
RUNTIME_IMAGE = "shoal/runtime"


class Images:
    """The image table: ours, and what the user's file adds; read anew whenever it is asked for."""

    def __init__(self, file: Path, models: Models) -> None:
        self.file = file
        self._models = models

    def table(self) -> Table:
        """Return the table as it is now. Raises BadTableError: the user's file is broken; the message says where."""
        models = {f"{MODELS}/{name}": directory for name, directory in self._models.directories().items()}
        ours = with_files(default_table(sys.executable), RUNTIME_IMAGE, models)
        return {**ours, **_read_table(self.file)}


def _read_table(file: Path) -> dict[str, Image]:
    """Return what a user's file adds to the table; nothing if there is none."""
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
    lines = {key.value: key.start_mark.line + 1 for key, _ in root.value}
    table: dict[str, Image] = {}
    for name, entry in document.items():
        try:
            table |= parse_table({str(name): entry})
        except BadTableError as error:
            raise BadTableError(f"{file}, line {lines.get(str(name), 1)}: {error}") from None
    return table


class AddressPool:
    """Gives each pod an address of its own."""

    def __init__(self, network: IPv4Network) -> None:
        self._network = network
        self._taken: dict[str, str] = {}
        self._next = 2

    def keep(self, uid: str, address: str) -> None:
        """Note the address that a pod has already."""
        self._taken[uid] = address

    def take(self, uid: str) -> str:
        """Return the pod's address; a new pod gets one that was not used for the longest time."""
        if uid in self._taken:
            return self._taken[uid]
        used = set(self._taken.values())
        size = self._network.num_addresses - 3
        for _ in range(size):
            address = str(self._network[self._next])
            self._next = 2 + (self._next - 1) % size
            if address not in used:
                self._taken[uid] = address
                return address
        raise OSError(f"no free address in {self._network}: pass a larger --pod-cidr")

    def give_back(self, uid: str) -> None:
        """Free a pod's address."""
        self._taken.pop(uid, None)


class Devices:
    """Gives containers the devices that they ask for, by number."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts
        self._taken: dict[tuple[str, str], dict[str, list[int]]] = {}

    def keep(self, uid: str, name: str, devices: dict[str, list[int]]) -> None:
        """Note the devices that a container has already."""
        self._taken[uid, name] = devices

    def take(self, uid: str, name: str, container: Object) -> dict[str, list[int]]:
        """Return the container's devices by resource.

        Raises OSError: fewer are left than it asks for; the scheduler should not have sent it here.
        """
        if (uid, name) not in self._taken:
            limits = (container.get("resources") or {}).get("limits") or {}
            self._taken[uid, name] = {
                resource: self._free(resource, int(limits[resource])) for resource in self._counts if resource in limits
            }
        return self._taken[uid, name]

    def _free(self, resource: str, wanted: int) -> list[int]:
        used = {n for held in self._taken.values() for n in held.get(resource, [])}
        free = [n for n in range(self._counts[resource]) if n not in used]
        if len(free) < wanted:
            raise OSError(f"{wanted} of {resource} requested, only {len(free)} free")
        return free[:wanted]

    def give_back(self, uid: str) -> None:
        """Free the devices of all containers of a pod."""
        self._taken = {key: held for key, held in self._taken.items() if key[0] != uid}


@dataclass(frozen=True, slots=True)
class Machine:
    """What pods share."""

    client: ApiClient
    recorder: EventRecorder
    lookups: Lookups
    probe_client: ProbeClient
    images: Images
    addresses: AddressPool
    devices: Devices
    root: Path
    """Directory of the pods' records."""
    host_ip: str
    node_name: str
    hosts: Path
    """What containers see as ``/etc/hosts``."""
    mounts: bool
    """Whether containers see their volumes at their mount paths; where not, they are told the directories."""


def base_environment() -> dict[str, str]:
    """Return what containers have from this machine, as they would from their image."""
    found = {name: os.environ[name] for name in _PASSED_ON.split() if name in os.environ}
    if "PYTHONPATH" in found:
        # Containers start in another directory.
        parts = found["PYTHONPATH"].split(":")
        found["PYTHONPATH"] = ":".join(str(Path(part).absolute()) for part in parts)
    own = str(Path(sys.executable).parent)
    return {**found, "PATH": f"{own}:{os.environ.get('PATH', os.defpath)}"}
