"""Gives a process its own view of the file system: mounts that only it sees.

All containers share the machine's files; each gets its volumes at their mount paths through a mount
namespace. As root that needs nothing else; a plain user gets one inside a user namespace. Where a
mount path does not exist, the deepest directory above it is replaced, in this view only, by an
empty one that holds the same entries and the new one: nothing is ever created on the machine
itself.

Standard library only: this runs in the small process that starts a container.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_MOVE, _MS_REC, _MS_PRIVATE = (1, 32, 4096, 8192, 16384, 1 << 18)
_KEPT_FLAGS = {2: os.ST_NOSUID, 4: os.ST_NODEV, 8: os.ST_NOEXEC, 1024: os.ST_NOATIME, 2048: os.ST_NODIRATIME}
_PR_SET_CHILD_SUBREAPER = 36
_TERMINALS = ("tty", "vcs", "loop", "ram")


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file that the process sees at ``target``."""

    source: str
    target: str
    read_only: bool = False


def become_subreaper() -> None:
    """Inherit the orphans among our descendants, so that none outlives its container."""
    _check(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def isolate() -> None:
    """Enter a mount namespace of our own; the process must have one thread.

    Raises OSError: the kernel or a sandbox around us does not allow it.
    """
    # A container's root may make no mounts of its own, and yet a user namespace, in which it may.
    if os.geteuid() != 0 or _LIBC.unshare(CLONE_NEWNS) != 0:
        user, group = os.geteuid(), os.getegid()
        _check(_LIBC.unshare(CLONE_NEWNS | CLONE_NEWUSER), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)


class View:
    """Builds the view, mount by mount; call ``isolate`` first."""

    def __init__(self, staging: str) -> None:
        self._staging = staging
        self._replaced: set[str] = set()
        self._ours: list[str] = []

    def show(self, mounts: Iterable[Mount]) -> None:
        """Put the mounts in place, outer ones first. Raises OSError: a source does not exist, or the kernel refuses."""
        # Opened first: one mount may hide the source of the next.
        opened = [
            (os.path.realpath(mount.target), os.open(mount.source, os.O_PATH), mount.read_only) for mount in mounts
        ]
        for target, file, read_only in sorted(opened, key=lambda entry: _order(entry[0])):
            self._show_one(target, file, read_only=read_only)

    def _show_one(self, target: str, file: int, *, read_only: bool) -> None:
        source = f"/proc/self/fd/{file}"
        self._make_target(target, directory=os.path.isdir(source))
        _mount(source, target, None, _MS_BIND | _MS_REC)
        os.close(file)
        if read_only:
            # A user namespace may not drop the flags that are there.
            present = os.statvfs(target).f_flag
            kept = sum(flag for flag, seen in _KEPT_FLAGS.items() if present & seen)
            _mount("none", target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)
        self._ours.append(target)

    def _make_target(self, target: str, *, directory: bool) -> None:
        if os.path.lexists(target):
            return
        parent = os.path.dirname(target)
        above = parent
        while not os.path.isdir(above):
            above = os.path.dirname(above)
        within_ours = any(f"{above}/".startswith(f"{own}/") for own in self._ours)
        if above not in self._replaced and not within_ours:
            self._replace(above)
        os.makedirs(target if directory else parent, exist_ok=True)
        if parent != above:
            self._ours.append(os.path.join(above, os.path.relpath(parent, above).split("/")[0]))
        if not directory:
            _touch(target)

    def _replace(self, directory: str) -> None:
        """Put an empty directory in the place of this one, with the same entries."""
        original = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        names = sorted(os.listdir(directory))
        at = self._staging if directory == "/" else directory
        _mount("tmpfs", at, "tmpfs", 0, "mode=755,size=1m")
        for name in names:
            _copy_entry(f"/proc/self/fd/{original}/{name}", f"{at}/{name}")
        os.close(original)
        if directory == "/":
            os.chdir(at)
            _mount(at, "/", None, _MS_MOVE)
            os.chroot(".")
        self._replaced.add(directory)


def _order(target: str) -> tuple[bool, int]:
    """Sort what needs a new root first, while the staging directory is still in sight, then outer mounts first."""
    first_part = f"/{target.split('/')[1]}"
    return os.path.lexists(first_part), target.count("/")


def _copy_entry(source: str, target: str) -> None:
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)
        return
    name = os.path.basename(target)
    if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and name != "tty" and name.startswith(_TERMINALS)):
        # No container needs the machine's disks and consoles.
        return
    if stat.S_ISDIR(mode):
        os.mkdir(target)
    else:
        _touch(target)
    _mount(source, target, None, _MS_BIND | _MS_REC)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(_LIBC.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3]), f"mount {source} on {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def try_mount(directory: str) -> None:
    """Show an empty directory where there is none, as containers have it; this process alone sees it.

    Raises OSError: this machine does not allow it.
    """
    isolate()
    staging = os.path.join(directory, "root")
    os.mkdir(staging)
    View(staging).show([Mount(directory, f"/{os.path.basename(directory)}/inner", read_only=True)])


if __name__ == "__main__":
    try:
        try_mount(sys.argv[1])
    except OSError as refused:
        sys.exit(refused.strerror)
