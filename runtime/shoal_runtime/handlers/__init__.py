"""Interface of handlers, which run models: tensor specifications, context, and calls of their methods."""
