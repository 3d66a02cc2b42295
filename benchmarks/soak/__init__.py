"""``make soak``: the attacks that the tests hold in small, for longer, beside honest clients that check every answer.

It owns no test: what it finds gets one in ``tests/``. It never sends anything but to the server that it has started.
"""
