"""The signature of a model: specifications of its inputs and outputs."""
