"""What the Open Inference Protocol carries: datatypes, ``BYTES`` elements, bfloat16, errors of rows.

The one part of the schema that needs numpy; the operator never imports it. Compiled with the proxy's request path.
"""
