"""The steps between request and store: defaults, metadata rules, validation. Pure."""
