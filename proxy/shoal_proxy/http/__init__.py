"""Connections of clients over HTTP: limits, framing, and infer requests from head to response."""
