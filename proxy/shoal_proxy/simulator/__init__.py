"""Simulation of batching: arrivals on a simulated device with given latencies, without a runtime.

Pure: no I/O, no clock, random numbers from a seed. The scheduler is the proxy's own `shoal_proxy.batching`.
"""
