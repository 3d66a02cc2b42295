"""The limit of open file descriptors."""

import resource


def open_files(wanted: int) -> int:
    """Raise this process's limit to ``wanted``, as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return 2**31 if soft == resource.RLIM_INFINITY else soft
