"""The served kinds: a table of built-in kinds, and custom kinds from their definitions. Pure."""
