"""Turns a container of a pod's spec into what the shim runs: command, environment, mounts or directories."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from shoal_local.kubelet.containers import Member
from shoal_local.kubelet.images import command_line, find_image
from shoal_local.kubelet.machine import Machine, base_environment
from shoal_local.kubelet.names import HOSTS
from shoal_local.kubelet.variables import ConfigError, Context, expand, make_variables
from shoal_local.kubelet.volumes import ACCOUNT_PATH, Volumes, write_account_kubeconfig
from shoal_local.objects import Object

_BEGINS = r"""(?:(?<![^\s'"`=:,;(\[{<>|&])|(?<=://))"""
"""A path begins a word, follows a sign that parts words, as in ``unix:/run`` or ``A=/tmp``, or is that of a ``file://``."""
_ENDS = r"(?![\w.-])"
TERMINATION_LOG = "termination-log"


def rewriter(paths: Mapping[str, str]) -> Callable[[str], str]:
    """Return what replaces mount paths in a text, the longest that fits, together with what lies below them.

    Where no mounts can be made, a container is told the directories themselves; paths in its own code are not found.

    Args:
        paths: mount path to the file or directory of this machine.
    """
    known = {target.rstrip("/"): source for target, source in paths.items() if target.strip("/")}
    if not known:
        return lambda text: text
    longest_first = sorted(known, key=len, reverse=True)
    pattern = re.compile(_BEGINS + "(" + "|".join(map(re.escape, longest_first)) + ")" + _ENDS)
    return lambda text: pattern.sub(lambda found: known[found[1]], text)


def make_container_spec(
    member: Member, context: Context, machine: Machine, volumes: Volumes, run_directory: Path
) -> Object:
    """Return the content of the shim's container.json.

    Raises UnknownImageError, BadTableError, ConfigError, VolumeError, OSError: it cannot be made; the message says why.
    """
    spec, pod = member.spec, dict(context.pod)
    if "lifecycle" in spec:
        raise ConfigError("lifecycle hooks are not supported by the kubelet of shoal local")
    image = find_image(spec["image"], machine.images.table(), str(machine.images.file))
    own = make_variables(spec, context)
    files = [{"source": source, "target": target, "read_only": True} for target, source in image.files]
    names = {"source": str(machine.hosts), "target": str(HOSTS), "read_only": True}
    given = [*volumes.mounts_of(spec), _termination_mount(spec, run_directory)]
    mounts = [*files, *([names] if machine.mounts else ()), *given]
    paths = {} if machine.mounts else {m["target"]: m["source"] for m in mounts}
    told = rewriter(paths)
    devices = machine.devices.take(pod["metadata"]["uid"], member.name, spec)
    # A container sees the GPUs that it was given, and none when it asked for none.
    gpus = [str(n) for name, held in devices.items() if name.startswith("nvidia.com/") for n in held]
    variables = {
        **base_environment(),
        **dict(image.env),
        **_cluster_variables(pod, machine),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        **_told_variables(paths, pod, machine),
        **{name: told(value) for name, value in own.items()},
    }
    argv = command_line(
        image,
        [told(expand(part, own)) for part in spec.get("command") or []],
        [told(expand(part, own)) for part in spec.get("args") or []],
    )
    return {
        "argv": argv,
        "env": variables,
        "cwd": told(spec.get("workingDir") or image.working_dir or "/"),
        "mounts": _with_image(mounts, variables) if machine.mounts else [],
        "devices": devices,
    }


def _cluster_variables(pod: Object, machine: Machine) -> dict[str, str]:
    address = urlsplit(machine.client.url)
    return {
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": address.hostname or "",
        "KUBERNETES_SERVICE_PORT": str(address.port or 443),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(address.port or 443),
    }


def _told_variables(paths: Mapping[str, str], pod: Object, machine: Machine) -> dict[str, str]:
    """Return what tells programs of directories that they look for at fixed places, where these are not mounted."""
    found = {"TMPDIR": paths["/tmp"]} if "/tmp" in paths else {}
    if account := paths.get(ACCOUNT_PATH):
        server, space = machine.client.url, pod["metadata"]["namespace"]
        if kubeconfig := write_account_kubeconfig(Path(account), server, space):
            found["KUBECONFIG"] = str(kubeconfig)
    return found


def _termination_mount(spec: Object, run_directory: Path) -> Object:
    run_directory.mkdir(parents=True, exist_ok=True)
    file = run_directory / TERMINATION_LOG
    file.touch(mode=0o666)
    target = spec.get("terminationMessagePath") or "/dev/termination-log"
    return {"source": str(file), "target": target, "read_only": False}


def _with_image(mounts: list[Object], variables: dict[str, str]) -> list[Object]:
    """Keep our interpreter and packages in sight when a volume, at /tmp say, would hide them."""
    # `python -m` puts the directory that it was started in first, where there are no packages of ours.
    installed = sys.path if sys.flags.safe_path else sys.path[1:]
    needed = [sys.prefix, sys.base_prefix, *installed, *variables.get("PYTHONPATH", "").split(":")]
    hidden = hidden_paths([p for p in needed if p and Path(p).exists()], [m["target"] for m in mounts])
    return mounts + [{"source": path, "target": path, "read_only": True} for path in hidden]


def hidden_paths(needed: Iterable[str], targets: Iterable[str]) -> list[str]:
    """Return what must be shown again of the files and directories needed, as mounts at the targets hide them.

    What lies below another of them is shown with it.
    """
    over = [os.path.realpath(target) for target in targets]
    paths = {name for path in needed for name in (path, os.path.realpath(path))}
    hidden = {path for path in paths if any(path.startswith(f"{target}/") for target in over)}
    return sorted(path for path in hidden if not any(str(parent) in hidden for parent in Path(path).parents))
