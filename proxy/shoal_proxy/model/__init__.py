"""What the proxy knows of the model: its signature, as V2 metadata tells it, and the datatypes of the wire.

Pure: no I/O, no clock.
"""
