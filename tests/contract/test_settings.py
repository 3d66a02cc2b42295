"""The environment, from both sides: what ``shoal serve`` renders, the processes read."""

import pytest

from shoal.serving.fields import parse_assignment, to_environment
from shoal_proxy.settings import Settings as ProxySettings
from shoal_runtime.settings import Settings as RuntimeSettings
from shoal_schema.process.environment import manifest_fields

REQUIRED = {"SHOAL_MODEL_URI": "/models/cat", "SHOAL_PROXY_API_KEYS": "/keys"}
VALUES = {
    "metadata.name": "cat-2",
    "model.version": "7",
    "model.uri": "/models/dog",
    "model.checksum": "sha256:" + "ab" * 32,
    "model.format": "Handler",
    "model.handler": "handler.py:Cat",
    "model.parameters": '{"depth": 3}',
    "model.allowPickle": "true",
    "model.trustedTypes": "package.module.Kind,another.Type",
    "model.extraColumns": "Reject",
    "runtime.device": "cpu",
    "runtime.dtype": "float32",
    "runtime.precision.maxAbsError": "1e-3",
    "runtime.precision.maxRelError": "0.02",
    "runtime.precision.minAgreement": "0.99",
    "runtime.compile": "true",
    "runtime.tensorrt": "true",
    "runtime.threads": "3",
    "runtime.instances": "2",
    "runtime.memoryFraction": "0.25",
    "runtime.preprocessThreads": "5",
    "runtime.forwardTimeoutSeconds": "2.5",
    "proxy.compressionMinBytes": "1024",
    "proxy.cors.allowedOrigins": "https://app.example.com",
    "proxy.forwardHeaders": "authorization,x-tenant",
    "proxy.docs": "true",
    "proxy.grpcPort": "8081",
    "batching.maxBatchSize": "16",
    "batching.allowedBatchSizes": "8,32",
    "batching.policy": "Fixed",
    "batching.latencyObjectiveMilliseconds": "100",
    "batching.maxDelayMilliseconds": "4",
    "batching.padBuckets": '{"tokens": [64, 128]}',
    "batching.inFlight": "2",
    "batching.idempotent": "true",
    "batching.coalesceIdentical": "true",
    "batching.rowChecks": "Off",
    "queue.maxRows": "77",
    "queue.maxBytes": "99999",
    "queue.timeoutMilliseconds": "123",
    "queue.maxBodyBytes": "4096",
    "queue.priorityAgeingMilliseconds": "5",
    "queue.fairShareHeader": "x-tenant",
    "queue.fairShareWeights": '{"acme": 3}',
    "asynchronous.timeoutSeconds": "600",
    "asynchronous.resultSeconds": "60",
    "asynchronous.maxRequests": "10",
    "asynchronous.maxBytes": "65536",
    "asynchronous.store.uri": "file:///var/results",
    "asynchronous.webhooks.allowedHosts": "*.example.com",
    "rollout.drainDelaySeconds": "7",
    "rollout.drainTimeoutSeconds": "8",
    "access.header.name": "x-consumer",
    "access.header.keys": "edge",
    "access.jwt.issuer": "https://issuer.example.com",
    "access.jwt.audience": "cat",
    "access.jwt.jwksUrl": "https://issuer.example.com/keys",
    "access.jwt.scope": "predict",
    "access.jwt.callerClaim": "client_id",
    "access.limits.rowsPerSecond": '{"team-a": 100, "*": 10}',
    "access.limits.rowsInFlight": '{"team-a": 64}',
}
_JWT = {f"access.jwt.{name}": f"https://other.example.com/{name}" for name in ("issuer", "audience", "jwksUrl")}
NEEDED = {
    "batching.maxDelayMilliseconds": {"batching.policy": "Fixed"},
    "queue.fairShareWeights": {"queue.fairShareHeader": "x-tenant"},
    "access.header.name": {"access.header.keys": "edge"},
    "asynchronous.store.uri": {"asynchronous.timeoutSeconds": "60"},
    "asynchronous.webhooks.allowedHosts": {"asynchronous.timeoutSeconds": "60"},
    **dict.fromkeys((name for name in VALUES if name.startswith("access.jwt.")), _JWT),
}
"""What a field needs beside it."""
SHARED = {"metadata.name", "model.version", "batching.maxBatchSize"}


def test_every_field_has_an_example_here() -> None:
    assert set(VALUES) == set(manifest_fields())


@pytest.mark.parametrize("name", VALUES)
def test_a_field_changes_the_settings_of_the_process_it_is_for(name: str) -> None:
    before = dict(REQUIRED)
    for needed, value in NEEDED.get(name, {}).items():
        before |= to_environment(parse_assignment(f"{needed}={value}"))
    environment = {**before, **to_environment(parse_assignment(f"{name}={VALUES[name]}"))}
    proxy = ProxySettings.from_env(environment) != ProxySettings.from_env(before)
    runtime = RuntimeSettings.from_env(environment) != RuntimeSettings.from_env(before)
    if name in SHARED:
        assert (proxy, runtime) == (True, True)
    else:
        assert proxy != runtime


def test_both_processes_hold_the_same_batch_size() -> None:
    environment = {**REQUIRED, **to_environment(parse_assignment("batching.maxBatchSize=48"))}
    assert ProxySettings.from_env(environment).batching.max_batch_size == 48
    assert RuntimeSettings.from_env(environment).batching.max_batch_size == 48
