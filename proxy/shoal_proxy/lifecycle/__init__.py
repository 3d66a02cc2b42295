"""The lifecycle states of a proxy, and the permitted actions in each.

Pure: no I/O, no clock.
"""
