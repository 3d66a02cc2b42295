"""Batching without a runtime: arrivals and a latency table in, what would have happened out.

Pure: no I/O, no clock, randomness from a seed. The policy is the proxy's own `shoal_proxy.batching`.
"""
