"""How a model's author describes and writes a model: specifications, context, and how handlers are called.

Pure: no I/O, no clock. Torch is allowed.
"""
