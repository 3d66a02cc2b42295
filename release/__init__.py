"""Build, sign and try everything that a release publishes (``make release-check``)."""
