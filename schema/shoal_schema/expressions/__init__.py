"""Expressions that select rows: ``when`` of a graph's step, and ``--where`` of a batch.

`grammar` parses the text of an expression, `types` checks it against the columns' types, and `evaluation` returns the
rows for which it is true. Only `evaluation` needs numpy.
"""
