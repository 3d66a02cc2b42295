"""Computes steps, the knee and advice from responses under a rising load. Pure: no I/O, no clock.

Names ending in ``_s`` are in seconds, names ending in ``_ms`` in milliseconds.
"""
