"""Lifecycle states of a proxy, and what is allowed in each state.

Pure: no I/O, no clock.
"""
