// Nothing: in the place of what is never called.
