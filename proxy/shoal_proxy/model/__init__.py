"""The model's signature, read from V2 metadata, and the datatypes of the wire.

Pure: no I/O, no clock.
"""
