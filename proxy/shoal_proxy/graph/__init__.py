"""Graphs of models: each request is passed from model to model, row by row, instead of to a runtime.

`values`, `conditions`, `combining` and `graph_request` hold the values of rows; `walk`, `steps` and `link` pass the
rows through the steps. A graph forms no batches: the proxy of each step's model batches the requests of all graphs.
"""
