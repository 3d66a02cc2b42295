"""How each kind of model file becomes a handler: one module per format, each with a `load(source)`."""
