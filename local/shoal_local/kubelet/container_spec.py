"""Convert a container's spec to ``container.json``, the shim's input.

The shim is the process that starts the container.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from shoal_local.kubelet.containers import Member
from shoal_local.kubelet.images import command_line, find_image
from shoal_local.kubelet.machine import Machine, base_environment
from shoal_local.kubelet.node import HOSTS
from shoal_local.kubelet.variables import ConfigError, Context, expand, make_variables
from shoal_local.kubelet.volumes import ACCOUNT_PATH, Volumes, write_account_kubeconfig
from shoal_local.objects import Object

_BEGINS = r"""(?:(?<![^\s'"`=:,;(\[{<>|&])|(?<=://))"""
"""A path starts a word, or follows a separator as in ``unix:/run`` and ``A=/tmp``, or follows ``file://``."""
_ENDS = r"(?![\w.-])"
TERMINATION_LOG = "termination-log"


def rewriter(paths: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces mount paths in a text by their sources.

    ``paths``: file or directory of this machine by mount path; the longest path that matches is replaced.
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

    Raises UnknownImageError, BadTableError, ConfigError, VolumeError, OSError: the container cannot be started; the
    message says why.
    """
    spec, pod = member.spec, dict(context.pod)
    if "lifecycle" in spec:
        raise ConfigError("lifecycle hooks are not supported by the kubelet of shoal local")
    image = find_image(spec["image"], machine.images.table(), str(machine.images.file))
    own = make_variables(spec, context)
    # What the image holds, the hosts file, the termination log, and the volumes.
    files = [{"source": source, "target": target, "read_only": True} for target, source in (image.files or {}).items()]
    names = {"source": str(machine.hosts), "target": str(HOSTS), "read_only": True}
    run_directory.mkdir(parents=True, exist_ok=True)
    log = run_directory / TERMINATION_LOG
    log.touch(mode=0o666)
    log_target = spec.get("terminationMessagePath") or "/dev/termination-log"
    given = [*volumes.mounts_of(spec), {"source": str(log), "target": log_target, "read_only": False}]
    mounts = [*files, *([names] if machine.mounts else ()), *given]
    paths = {} if machine.mounts else {m["target"]: m["source"] for m in mounts}
    rewritten = rewriter(paths)
    devices = machine.devices.acquire(pod["metadata"]["uid"], member.name, spec)
    # An empty CUDA_VISIBLE_DEVICES hides all GPUs from a container that requests none.
    gpus = [str(n) for name, held in devices.items() if name.startswith("nvidia.com/") for n in held]
    address = urlsplit(machine.client.url)
    # Variables by which programs find directories that are not mounted at their usual paths.
    moved = {"TMPDIR": paths["/tmp"]} if "/tmp" in paths else {}
    if account := paths.get(ACCOUNT_PATH):
        space = pod["metadata"]["namespace"]
        if kubeconfig := write_account_kubeconfig(Path(account), machine.client.url, space):
            moved["KUBECONFIG"] = str(kubeconfig)
    # Later entries win: the container's own variables override all others.
    variables = {
        **base_environment(),
        **(image.env or {}),
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": address.hostname or "",
        "KUBERNETES_SERVICE_PORT": str(address.port or 443),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(address.port or 443),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
        **moved,
        **{name: rewritten(value) for name, value in own.items()},
    }
    if machine.mounts:
        # A volume, for example at /tmp, would hide the interpreter or the packages without mounts of their own.
        # `python -m` adds the current directory first, which holds no package of ours.
        installed = sys.path if sys.flags.safe_path else sys.path[1:]
        needed = [sys.prefix, sys.base_prefix, *installed, *variables.get("PYTHONPATH", "").split(":")]
        hidden = hidden_paths([p for p in needed if p and Path(p).exists()], [m["target"] for m in mounts])
        mounts += [{"source": path, "target": path, "read_only": True} for path in hidden]
    argv = command_line(
        image,
        [rewritten(expand(part, own)) for part in spec.get("command") or []],
        [rewritten(expand(part, own)) for part in spec.get("args") or []],
    )
    return {
        "argv": argv,
        "env": variables,
        "cwd": rewritten(spec.get("workingDir") or image.working_dir or "/"),
        "mounts": mounts if machine.mounts else [],
        "devices": devices,
    }


def hidden_paths(needed: Iterable[str], targets: Iterable[str]) -> list[str]:
    """Return the paths among ``needed`` that mounts at ``targets`` hide.

    A path below another hidden path is left out: a mount of the upper path restores both.
    """
    # Mounts apply to resolved paths.
    over = [os.path.realpath(target) for target in targets]
    paths = {name for path in needed for name in (path, os.path.realpath(path))}
    hidden = {path for path in paths if any(path.startswith(f"{target}/") for target in over)}
    return sorted(path for path in hidden if not any(str(parent) in hidden for parent in Path(path).parents))
