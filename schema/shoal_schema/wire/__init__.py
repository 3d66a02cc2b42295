"""What goes over the wire: tensors as the Open Inference Protocol has them, and where a request of HTTP ends.

The one part of the schema that needs numpy; the operator never imports it. Compiled with the proxy's request path.
"""
