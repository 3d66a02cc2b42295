"""Simulator of batching on a device with given latencies.

Pure: no I/O, no clock, randomness from a seed. The policy is the proxy's own `shoal_proxy.batching`.
"""
