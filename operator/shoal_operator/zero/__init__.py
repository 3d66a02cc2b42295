"""Scale to zero and back, with the activator."""
