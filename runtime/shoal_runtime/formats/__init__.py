"""How each kind of model file becomes a handler: a module per format, with a `load(source)`."""
