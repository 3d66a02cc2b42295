"""What every test takes for granted, however it was started."""

import gc
import signal

from hypothesis import settings

# Behind `nohup` and in the background of a script Ctrl-C is ignored, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes an example slow; that is no property of what is tested.
settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")

# All that is imported now stays, and it is much: a quarter of each worker's start went into looking for garbage in it.
gc.disable()


def pytest_collection_finish() -> None:
    """Let the collector look at what tests make, and at nothing that was there before."""
    gc.collect()
    gc.freeze()
    gc.enable()
