"""API verbs, which map requests to responses and change the store. No I/O."""
