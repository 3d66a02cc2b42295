"""Loads, latency objectives and row checks that proxies report, and the pods to read.

``reading`` decodes a load; ``objective`` and ``independence`` keep what pods reported; ``service_cache`` keeps the
services to read and their ready pods.
"""
