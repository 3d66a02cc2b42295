"""The Open Inference Protocol (V2) between client and server, with binary tensors.

Pure: bytes and values in, bytes and values out. No sockets, no clock, no HTTP library; the driver
of :class:`shoal.wire.session.Session` sends requests and sleeps.
"""
