"""Routes apart from infer requests: health, metadata, administration, documentation."""
