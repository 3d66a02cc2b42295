"""Bytes to requests and answers to bytes: one module per caller's protocol, and the wire to the runtime.

Pure: no I/O, no clock. A codec never sees a socket, and every fault in a body becomes one of `shoal_proxy.errors`.
"""
