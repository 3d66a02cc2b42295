"""Explain the current bottleneck of latency and throughput, and the field that would change it.

Pure: no I/O, no clock; it reads a report and writes sentences.
"""
