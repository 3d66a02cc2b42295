"""Rows to batches and back: stacking, padding, splitting.

Pure: no I/O, no clock. Torch is allowed.
"""
