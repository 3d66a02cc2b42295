"""How a server bends under a rising load, from measured answers to steps, the knee, and what to change.

Pure: no I/O, no clock. Times are in seconds where a name ends in ``_s`` and in milliseconds where it ends in ``_ms``.
"""
