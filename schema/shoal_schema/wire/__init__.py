"""Wire formats: tensors of the Open Inference Protocol, and the framing of HTTP requests.

This package and `expressions.evaluation` need numpy, so the operator never imports them. Both are compiled with the
proxy's hot path.
"""
