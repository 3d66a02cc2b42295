"""Tensors as the Open Inference Protocol carries them: datatypes, ``BYTES`` elements, bfloat16.

The one part of the schema that needs numpy; the operator never imports it. Compiled with the proxy's request path.
"""
