"""A container's environment, command and arguments, from its spec."""
