"""The limit of open file descriptors."""

import resource


def open_files(wanted: int) -> int:
    """Raise this process's limit of open files to ``wanted``, as far as allowed, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    # A process may raise its soft limit up to the hard one without privileges.
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    # An unlimited soft limit is returned as a large number.
    return 2**31 if soft == resource.RLIM_INFINITY else soft
