"""Conversion of model files to handlers: a module per format, with a `load(source)`."""
