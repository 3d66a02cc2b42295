"""Objects that the operator's tests start from."""

import copy
from typing import Any

from shoal_operator.manifests.specs import graph_of, service_spec
from shoal_operator.manifests.target import Target
from shoal_schema.decoding import parse_spec
from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource import API_VERSION, GRAPH_KIND, KIND
from shoal_schema.resource.policy import Policy

UID = "11111111-2222-3333-4444-555555555555"
ANYTHING = Policy(
    root=True,
    annotations=("*=*",),
    **{name: ("*",) for name in Policy.__struct_fields__ if name not in ("root", "annotations")},
)
"""Allows all that there is."""
DEFAULTS = OperatorProcess(proxy_image="shoal/proxy:test", runtime_image="shoal/runtime:test", policy=ANYTHING)
MINIMAL: Json = {"model": {"uri": "file:///models/cat"}}
EVERYTHING: Json = {
    "model": {
        "uri": "file:///data/cat",
        "version": "7",
        "checksum": "sha256:" + "0" * 64,
        "format": "Handler",
        "handler": "cat.model:Cat",
        "parameters": {"top": 5, "labels": ["cat", "dog"]},
        "allowPickle": True,
        "trustedTypes": ["package.module.Kind"],
        "resources": {"limits": {"memory": "1Gi"}},
        "volume": {"mountPath": "/data", "persistentVolumeClaim": {"claimName": "models"}},
    },
    "runtime": {
        "image": "example/runtime@sha256:" + "1" * 64,
        "device": "CUDA",
        "dtype": "BFloat16",
        "compile": True,
        "threads": 4,
        "memoryFraction": "0.5",
        "preprocessThreads": 3,
        "forwardTimeoutSeconds": 30,
        "resources": {
            "limits": {"nvidia.com/gpu": 1, "memory": "8Gi"},
            "claims": [{"name": "gpu"}],
        },
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        "env": [{"name": "HF_HOME", "value": "/tmp/hf"}, {"name": "HOME", "value": "/home/cat"}],
        "volumeMounts": [{"name": "authorities", "mountPath": "/etc/authorities", "readOnly": True}],
        "sharedMemory": "2Gi",
        "imagePullPolicy": "Always",
        "securityContext": {"readOnlyRootFilesystem": False},
    },
    "proxy": {
        "image": "example/proxy:1",
        "forwardHeaders": ["x-tenant", "authorization"],
        "grpcPort": 8081,
        "resources": {"requests": {"cpu": "0.5"}},
        "imagePullPolicy": "Never",
        "securityContext": {"runAsUser": 1001},
        "env": [{"name": "SSL_CERT_FILE", "value": "/authorities/ca.crt"}],
        "volumeMounts": [{"name": "authorities", "mountPath": "/authorities", "readOnly": True}],
    },
    "batching": {
        "maxBatchSize": 16,
        "allowedBatchSizes": [16, 1, 4],
        "policy": "Fixed",
        "maxDelayMilliseconds": 5,
        "inFlight": 2,
    },
    "queue": {
        "maxRows": 64,
        "maxBytes": 1048576,
        "timeoutMilliseconds": 5000,
        "maxBodyBytes": 65536,
    },
    "replicas": 3,
    "scaling": {"minReplicas": 2, "maxReplicas": 8, "targetQueueDepth": 24},
    "rollout": {
        "maxSurge": 0,
        "maxUnavailable": 1,
        "progressDeadlineSeconds": 1200,
        "drainDelaySeconds": 10,
        "drainTimeoutSeconds": 90,
        "minReadySeconds": 10,
    },
    "route": {
        "ingress": {
            "host": "cat.example.com",
            "className": "traefik",
            "tlsSecretName": "cat-tls",
            "annotations": {"example.com/body-size": "64m"},
        },
        "httpRoute": {
            "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
            "hostnames": ["cat.example.com"],
            "path": "/v2/models/cat",
            "timeoutSeconds": 75,
        },
    },
    "service": {"type": "LoadBalancer", "annotations": {"example.com/internal": "true"}},
    "access": {
        "apiKeys": {"secretName": "cat-callers"},
        "header": {"name": "x-consumer-username", "keys": ["edge"]},
        "jwt": {
            "issuer": "https://issuer.example.com",
            "audience": "cat",
            "jwksUrl": "https://issuer.example.com/keys",
            "scope": "predict",
        },
        "limits": {"rowsPerSecond": {"team-a": 100, "*": 10}, "rowsInFlight": {"team-a": 64}},
    },
    "pod": {
        "labels": {"team": "vision"},
        "annotations": {"example.com/profile": "on"},
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [],
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "serviceAccountName": "cat-account",
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"runAsUser": 1000},
        "schedulerName": "packing",
        "volumes": [
            {"name": "authorities", "configMap": {"name": "authorities"}},
            {"name": "scratch", "emptyDir": {"sizeLimit": "0.5Gi"}},
        ],
        "initContainers": [
            {"name": "tunnel", "image": "example/tunnel:1", "restartPolicy": "Always"},
        ],
        "containers": [
            {
                "name": "audit",
                "image": "example/audit:1",
                "ports": [{"name": "audit", "containerPort": 7000}],
                "resources": {"limits": {"memory": "0.5Gi"}},
                "securityContext": {"runAsUser": 1002},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            },
        ],
    },
}
BY_HPA: Json = {
    **MINIMAL,
    "scaling": {"mode": "External", "maxReplicas": 8, "external": {"horizontalPodAutoscaler": {}}},
}
BY_KEDA: Json = {
    **MINIMAL,
    "scaling": {
        "mode": "External",
        "minReplicas": 2,
        "maxReplicas": 8,
        "external": {"targetPercent": 70, "scaledObject": {"serverAddress": "http://prometheus.monitoring:9090"}},
    },
}
DOWNLOADED: Json = {
    "model": {
        "uri": "https://models.example.com/cat.pt2",
        "checksum": "sha256:" + "a" * 64,
        "caBundle": {"configMapName": "authorities"},
    },
    "runtime": {"resources": {"limits": {"nvidia.com/gpu": 1}}},
}
SECURE: Json = {
    **MINIMAL,
    "proxy": {"grpcPort": 8081},
    "tls": {"secretName": "cat-tls", "clientCaSecretName": "callers-ca"},
    "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "shop"}}}]},
    "route": {"ingress": {"host": "cat.example.com"}, "httpRoute": {"parentRefs": [{"name": "public"}]}},
}
JUDGED: Json = {
    **MINIMAL,
    "rollout": {"strategy": "Canary", "steps": [{"shadow": 10, "rows": 100}, {"weight": 50}]},
    "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "shop"}}}]},
}
NEWER: Json = {**JUDGED, "model": {"uri": "file:///models/newer"}}
OPEN: Json = {**MINIMAL, "networkPolicy": {"mode": "None"}}
FOREIGN: Json = {
    "model": {"volume": {"mountPath": "/models", "image": {"reference": "example/models:1"}}},
    "runtime": {
        "image": "example/triton:1",
        "port": 8000,
        "command": ["tritonserver"],
        "args": ["--model-repository=/models"],
    },
}


def service(spec: Json | None = None, *, name: str = "cat", **metadata: Any) -> Json:
    """Return an ``InferenceService`` as a user writes it, with what the server adds."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": UID,
            "generation": 1,
            "resourceVersion": "1",
            **metadata,
        },
        "spec": copy.deepcopy(MINIMAL if spec is None else spec),
    }


GRAPH: Json = {
    "steps": [
        {"name": "first", "service": "cat", "inputs": {"x": "request.x"}, "when": "request.x > 0"},
        {"name": "second", "graph": "others", "inputs": {"x": "first.y"}, "onError": "Omit"},
        {"name": "third", "url": "https://models.example.com/v2/models/dog", "inputs": {"x": "first.y"}},
    ],
    "outputs": {"z": ["second.z", "third.z"]},
    "deadlineMilliseconds": 250,
    "proxy": {"forwardHeaders": ["authorization"]},
}


def graph(spec: Json | None = None, *, name: str = "pipeline", **metadata: Any) -> Json:
    """Return an ``InferenceGraph`` as a user writes it, with what the server adds."""
    made = service(GRAPH if spec is None else spec, name=name, **metadata)
    return {**made, "kind": GRAPH_KIND}


def graph_target(resource: Json, *, defaults: OperatorProcess = DEFAULTS) -> Target:
    """Return the typed target of a graph."""
    metadata = resource["metadata"]
    return Target(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        spec=service_spec(resource),
        defaults=defaults,
        graph=graph_of(resource, defaults.service_url),
    )


def target(spec: Json | None = None, *, defaults: OperatorProcess = DEFAULTS, name: str = "cat") -> Target:
    """Return the typed target of a spec."""
    return Target(name=name, namespace="default", uid=UID, spec=parse_spec(service(spec)), defaults=defaults)


def with_fields(spec: Json, **changes: Any) -> Json:
    """Return a copy with nested fields replaced: ``batching__maxBatchSize=4``; None removes."""
    copied = copy.deepcopy(spec)
    for path, value in changes.items():
        *parents, last = path.split("__")
        holder = copied
        for parent in parents:
            holder = holder.setdefault(parent, {})
        if value is None:
            holder.pop(last, None)
        else:
            holder[last] = value
    return copied
