"""Wire formats: tensors of the Open Inference Protocol, and the framing of HTTP requests.

The only part of the schema that needs numpy, so the operator never imports it. Compiled with the proxy's hot path.
"""
