"""Batches: stacking rows, padding them, removing the padding."""
