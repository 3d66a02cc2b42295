"""The handler interface: tensor specifications, context, and calls of a handler's methods."""
