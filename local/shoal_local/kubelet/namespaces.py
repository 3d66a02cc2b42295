"""Private views of the file system for processes, by mounts.

All containers share the machine's files; each gets its volumes at their mount paths in a mount namespace. For root this
suffices; another user also gets a user namespace. If a mount path does not exist, the deepest existing directory above
it is replaced, in this view only, by a new directory with the same entries and the mount path. Nothing is created on
the machine itself.

Standard library only: the shim, a small process that starts a container, imports this module.
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
"""Flags of mount(2), and the flag of statvfs that shows each."""
_PR_SET_CHILD_SUBREAPER = 36
_TERMINALS = ("tty", "vcs", "loop", "ram")


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file that the process sees at ``target``."""

    source: str
    target: str
    read_only: bool = False


def become_subreaper() -> None:
    """Become the parent of orphaned descendants, so that none outlives its container."""
    _check(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def isolate() -> None:
    """Enter a new mount namespace; the process must have one thread.

    Raises OSError: the kernel or a sandbox does not allow it.
    """
    # Root in a container may not have CAP_SYS_ADMIN and still be allowed a user namespace, which has it.
    if os.geteuid() != 0 or _LIBC.unshare(CLONE_NEWNS) != 0:
        user, group = os.geteuid(), os.getegid()
        _check(_LIBC.unshare(CLONE_NEWNS | CLONE_NEWUSER), "unshare")
        # The kernel requires setgroups=deny before an unprivileged gid_map.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    # Private: mounts of this namespace must not appear on the machine.
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)


class View:
    """A container's view of the file system; call ``isolate`` first."""

    def __init__(self, staging: str) -> None:
        self._staging = staging
        self._replaced: set[str] = set()
        # Targets in this list are part of the view, so they may be changed.
        self._ours: list[str] = []

    def show(self, mounts: Iterable[Mount]) -> None:
        """Make the mounts. Raises OSError: a source is missing or mounts fail."""
        # All sources are opened first: a mount may hide the source of the next.
        opened = [
            (os.path.realpath(mount.target), os.open(mount.source, os.O_PATH), mount.read_only) for mount in mounts
        ]

        def order(entry: tuple[str, int, bool]) -> tuple[bool, int]:
            # Targets that need a new root first, while the staging directory is visible; then outer before inner.
            return os.path.lexists(f"/{entry[0].split('/')[1]}"), entry[0].count("/")

        for target, file, read_only in sorted(opened, key=order):
            source = f"/proc/self/fd/{file}"
            self._make_target(target, directory=os.path.isdir(source))
            _mount(source, target, None, _MS_BIND | _MS_REC)
            os.close(file)
            if read_only:
                # A user namespace may not drop flags such as nosuid that the mount has.
                present = os.statvfs(target).f_flag
                kept = sum(flag for flag, seen in _KEPT_FLAGS.items() if present & seen)
                _mount("none", target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | kept)
            self._ours.append(target)

    def _make_target(self, target: str, *, directory: bool) -> None:
        """Create the target of a mount in this view, unless it exists."""
        if os.path.lexists(target):
            return
        parent = os.path.dirname(target)
        above = parent
        # The deepest directory that exists.
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
        """Replace a directory, in this view, by an empty one with bind mounts of its entries."""
        original = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        names = sorted(os.listdir(directory))
        # The root cannot be mounted over in place: the new one is built in staging and then moved.
        at = self._staging if directory == "/" else directory
        # The view holds only mount points, which need no space.
        _mount("tmpfs", at, "tmpfs", 0, "mode=755,size=1m")
        for name in names:
            source, target = f"/proc/self/fd/{original}/{name}", f"{at}/{name}"
            mode = os.lstat(source).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(source), target)
                continue
            if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and name != "tty" and name.startswith(_TERMINALS)):
                # Containers do not need the machine's disks and consoles.
                continue
            # A bind mount needs a target of the same kind.
            if stat.S_ISDIR(mode):
                os.mkdir(target)
            else:
                _touch(target)
            _mount(source, target, None, _MS_BIND | _MS_REC)
        os.close(original)
        if directory == "/":
            os.chdir(at)
            _mount(at, "/", None, _MS_MOVE)
            # The moved mount is the root from now on.
            os.chroot(".")
        self._replaced.add(directory)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _check(_LIBC.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3]), f"mount {source} on {target}")


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def try_mount(directory: str) -> None:
    """Mount an empty directory at a path that does not exist, visible to this process only.

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
