"""How authors describe and write models: specifications, context, and how handlers are called.

Pure: no I/O, no clock. Torch is allowed.
"""
