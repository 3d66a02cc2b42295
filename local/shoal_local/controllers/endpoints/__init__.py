"""EndpointSlices of services, from the readiness of their pods."""
