"""Graphs as values: in what order steps run, over which rows, and whether their models fit one another.

It is agreed on here as four read it: the operator, the proxy that runs a graph, `shoal inspect` and `shoal.graph`. It
asks no model anything, and computes no row.
"""
