"""What every test takes for granted, however it was started."""

import signal

from hypothesis import settings

# Behind `nohup` and in the background of a script Ctrl-C is ignored, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes an example slow; that is no property of what is tested.
settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")
