"""Model signatures, read from V2 metadata, and the wire's datatypes.

Pure: no I/O, no clock.
"""
