"""Explanation of the bottleneck of latency and throughput, and the field to change.

Pure: no I/O, no clock. The package reads a report and returns sentences.
"""
