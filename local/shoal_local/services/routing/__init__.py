"""From Services and EndpointSlices to what listens where and who answers. Pure."""
