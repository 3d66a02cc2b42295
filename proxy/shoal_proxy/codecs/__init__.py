"""Codecs, one per client protocol, and the wire protocol of the runtime.

Pure: no I/O, no clock. A malformed body raises one of `shoal_proxy.errors`.
"""
