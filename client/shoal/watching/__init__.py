"""Figures of services between two samples, and their presentation.

Pure: `shoal.looking` takes the samples, `shoal.top` and `shoal.dashboard` show the figures.
"""
