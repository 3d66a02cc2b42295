"""A graph instead of a runtime: each request is passed from model to model, row by row.

Owns the values of rows (`values`, `conditions`, `combining`, `graph_request`) and their way through the steps (`walk`,
`steps`, `link`). It forms no batches: the proxy of each step's model does, for the requests of all graphs.
"""
