"""What happens to an object between request and store: defaults, metadata rules, deletion. Pure."""
