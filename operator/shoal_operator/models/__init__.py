"""Resolution of model names to versions."""
