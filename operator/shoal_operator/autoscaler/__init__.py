"""How many replicas a service needs: a pure function of its load and of time.

Never reads a metric, never writes a scale.
"""
