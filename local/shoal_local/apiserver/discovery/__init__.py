"""Documents that tell clients what this server serves: discovery and OpenAPI. Pure."""
