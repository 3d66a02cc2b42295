"""State what bounds latency and throughput now, and which field would change it.

Pure: no I/O, no clock; it reads a report and writes sentences.
"""
