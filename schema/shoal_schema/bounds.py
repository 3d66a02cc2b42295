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
