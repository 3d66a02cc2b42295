"""What Shoal's components agree on, once: the resource's fields, settings, reasons, metrics and words of the wire.

Every component imports it, it imports none of them. It never opens a file, a socket or a clock; ``generate`` alone, a
tool of the repository, writes what follows from it: definition, reference and tables.
"""
