"""What keeps a replica from serving more: ``/v1/explain`` concludes it, and ``shoal bench`` says the same."""

from enum import StrEnum


class Bound(StrEnum):
    """What is used up first when requests become more."""

    UNKNOWN = "Unknown"
    """Too little was measured, or the runtime does not say what of its time is the model's."""
    MODEL = "Model"
    """Its own time for a batch is longer than the host's work around it."""
    HOST = "Host"
    """The host's work around a batch is longer than the model's own time: encode, carry, prepare, split."""
    PROXY = "Proxy"
    """Its thread used all of a core, and it can use no more than one."""


MORE_PROCESSOR_TIME = "more processor time (in a cluster runtime.resources, on one machine less beside it)"
"""What helps a host that is short of it: a server does not know, nor who loads it, whether it is in a pod."""
