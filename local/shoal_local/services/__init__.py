"""Makes services callable on one machine: listens on their addresses and passes connections on to ready pods."""
