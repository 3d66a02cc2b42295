"""What travels between a caller and a server: the Open Inference Protocol (V2), in binary.

Pure: bytes and values in, bytes and values out. No sockets, no clock, no HTTP library; whoever
drives :class:`shoal.wire.session.Session` does the sending and the sleeping.
"""
