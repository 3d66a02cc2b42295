"""Makes services callable on one machine.

Listens on their loopback addresses and passes connections on to ready pods.
"""
