"""Graphs of models behind one proxy: requests pass from model to model.

Owns the values of rows (`values`, `conditions`, `combining`, `graph_request`) and their way through the steps (`walk`,
`steps`, `link`). It forms no batches: the proxy of each step's model does, for the requests of all graphs.
"""
