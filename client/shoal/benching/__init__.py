"""From the responses measured under a rising load to steps, the knee and advice.

Pure: no I/O, no clock. Times are in seconds where a name ends in ``_s`` and in milliseconds where it ends in ``_ms``.
"""
