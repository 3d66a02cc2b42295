"""The states of a proxy's life and what each allows.

Pure: no I/O, no clock.
"""
