"""The schemas of objects: built-in definitions, and structural schemas of custom kinds. Pure."""
