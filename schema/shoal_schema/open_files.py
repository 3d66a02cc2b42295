"""How many descriptors a process may have open."""

import resource


def open_files(wanted: int) -> int:
    """Return how many this process may have, after asking for as many as it wants and is allowed to ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return 2**31 if soft == resource.RLIM_INFINITY else soft
