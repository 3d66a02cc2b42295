"""Decodes requests and encodes responses: one module per client protocol, and the protocol of the runtime.

Pure: no I/O, no clock. Every fault in a body becomes one of `shoal_proxy.errors`.
"""
