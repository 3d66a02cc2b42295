"""Graphs as values: the order of steps, their rows, and whether their models fit one another.

Shared by the operator, the proxy, `shoal inspect` and `shoal.graph`. This package calls no model and computes no row.
"""
