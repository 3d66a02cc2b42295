"""Load figures of services between two samples, and their presentation.

Pure: `shoal.sampling` takes the samples, `shoal.top` and `shoal.dashboard` show the figures.
"""
