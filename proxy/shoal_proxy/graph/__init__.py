"""A graph in the place of a runtime: each request is taken from model to model, row by row.

Owns what becomes of a row on its way (`values`, `conditions`, `combining`, `frame`), and the way itself (`walk`,
`steps`, `link`). It never batches: that is what the proxy of each step's model does, for the callers of all graphs.
"""
