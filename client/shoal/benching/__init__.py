"""Analysis of a load test: steps, capacity (the knee) and advice. Pure: no I/O, no clock.

Names ending in ``_s`` are in seconds, names ending in ``_ms`` in milliseconds.
"""
