"""Start of a model: warm-up and tests of its rows before it is ready."""
