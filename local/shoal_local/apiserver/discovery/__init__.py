"""Documents that describe the served kinds to clients: discovery and OpenAPI. Pure."""
