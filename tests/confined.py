"""Runs a command as a default container does: the kernel denies namespaces and mounts to every user.

``python -m tests.confined COMMAND...``; what the command starts is confined as well.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_REFUSED = {  # unshare, setns, mount
    "x86_64": (272, 308, 165),
    "aarch64": (97, 268, 40),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def confine() -> None:
    """Have the kernel refuse unshare, setns and mount to this process and its children, as seccomp does there."""
    numbers = _REFUSED[platform.machine()]
    steps = [(_LOAD_NUMBER, 0, 0, 0)]
    steps += [(_JUMP_IF_EQUAL, len(numbers) - index, 0, number) for index, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    program = _Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    for call in (
        (_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), none, none, none),
        (_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), none, none),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    confine()
    os.execvp(sys.argv[1], sys.argv[1:])
