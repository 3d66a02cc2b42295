"""How authors describe and write models: specifications, context, and how handlers are called."""
