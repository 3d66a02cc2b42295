"""Reports of proxies on load, latency objectives and row checks.

``reading`` decodes a load; ``objective`` and ``independence`` keep what pods reported; ``service_cache`` keeps the
services to read and their ready pods.
"""
