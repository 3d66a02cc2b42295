"""Graphs: the rows of a request pass through several models.

Each step of a graph calls one model. `values`, `conditions`, `combining` and `graph_request` hold the values of rows;
`walk`, `steps` and `link` call the steps. A graph forms no batches: the proxy of each step's model batches the requests
of all graphs.
"""
