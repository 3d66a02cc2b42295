"""Contracts between Shoal's components: fields, settings, reasons, metrics and wire formats.

Every component imports this package, which imports none of them. It opens no file or socket and reads no clock, except
in ``generate``, which writes the generated files of the repository.
"""
