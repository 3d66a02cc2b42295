"""Rows to batches and back: stacking, padding, splitting."""
