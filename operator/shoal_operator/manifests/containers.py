"""Containers of pods: ``proxy``, ``runtime``, ``model`` and ``batch``.

The runtime has no port: it listens on a socket in a directory that only the pod's containers share. So only the proxy
is probed. A runtime that loses its device or hangs in a batch exits (docs/reference/wire-protocol.md) and needs no
liveness probe. A foreign runtime may not exit, so it is probed on its port.
"""

import json
from collections.abc import Iterable
from typing import Any

from msgspec import structs

from shoal_operator.manifests.environment import (
    ADMIN_PORT,
    CACHE_DIR,
    HTTP_PORT,
    SOCKET,
    SOCKET_DIR,
    literal,
    runtime_instances,
    spec_variables,
    variable,
)
from shoal_operator.manifests.revisions import revision_of
from shoal_operator.manifests.secrets import (
    ca_mounts,
    ca_variables,
    secret_mounts,
    secret_variables,
    webhook_secret,
)
from shoal_operator.manifests.stop_times import SHUTDOWN_MARGIN_S, replacement_time_s, stop_time_s
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json, Process, as_json
from shoal_schema.process.settings.log import LOG_FORMAT, LogForm
from shoal_schema.resource.offline import BatchInferenceSpec
from shoal_schema.resource.passthrough import ImagePullPolicy

BATCH, MODEL, PROXY, RUNTIME = "batch", "model", "proxy", "runtime"
REVISION = "SHOAL_PROXY_REVISION"
"""The variable with the revision of a pod."""
_OF_GRAPH = ("SHOAL_PROXY_GRAPH", "SHOAL_PROXY_NAMESPACE")
"""Variables that `proxy.env` cannot override: the spec alone defines the graph."""
_PROXY_REQUESTS = {"cpu": "100m", "memory": "256Mi"}
# The proxy works in one thread, so two CPUs never throttle it.
_PROXY_CPUS = "2"
_PROXY_BASE_MI = 512
_COPIES_OF_QUEUE = 4
_MI = 2**20
_FETCH_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
_MAX_SHUTDOWN_S = 3600
_READY_PERIOD_S = 2
"""A starting proxy holds each probe for this long, so that readiness is reported without delay."""
_STARTUP_PROBE: Json = {
    "httpGet": {"path": "/healthz", "port": "admin"},
    "initialDelaySeconds": 1,
    "periodSeconds": 1,
    "timeoutSeconds": 5,
    "failureThreshold": 30,
}
"""A proxy listens after half a second of CPU time.

An earlier probe would only cause a warning Event; a later one would delay readiness. It fails after the same time as
the liveness probe (30 s).
"""


def make_proxy(target: Target) -> Json:
    """Return the container of the proxy."""
    host = target.defaults.listen_host.strip("[]")
    port = target.spec.runtime.port
    # By name: a foreign server may listen on the loopback address of one family only, and the proxy tries both.
    runtime = f"http://localhost:{port}" if port else SOCKET
    # Compact JSON: the kernel limits the size of one environment variable.
    graph = ""
    if target.graph:
        graph = json.dumps(as_json(target.graph), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    stay_s = replacement_time_s(target)
    instances = 1 if graph else runtime_instances(target.spec.runtime)
    peers = f"{target.peers_name}.{target.namespace}.svc:{HTTP_PORT}"
    proxy = target.spec.proxy
    fixed = [
        *([address_of_pod()] if "$(POD_IP)" in host else ()),
        # Addresses are reused by later pods: the uid is what identifies this one.
        {"name": "SHOAL_PROXY_INSTANCE", "valueFrom": field_of("metadata.uid")},
        variable("SHOAL_MODEL_NAME", target.name),
        variable("SHOAL_PROXY_LISTEN", _address(host, HTTP_PORT)),
        variable("SHOAL_PROXY_ADMIN_LISTEN", _address(host, ADMIN_PORT)),
        literal("SHOAL_PROXY_GRAPH", graph) if graph else variable("SHOAL_PROXY_RUNTIME", runtime),
        *([variable("SHOAL_PROXY_RUNTIME_INSTANCES", str(instances))] if instances > 1 else ()),
        *([variable("SHOAL_PROXY_NAMESPACE", target.namespace)] if graph else ()),
        *([variable("SHOAL_PROXY_PEERS", peers)] if target.finds_peers else ()),
        *_rollout(target),
        *([variable("SHOAL_PROXY_REPLACEMENT_TIMEOUT_S", str(stay_s))] if stay_s else ()),
        *_log_format(target),
        *secret_variables(target),
    ]
    asynchronous = target.asynchronous
    spec = structs.replace(target.spec, asynchronous=asynchronous)
    kept = [each for each in fixed if target.graph and each["name"] in _OF_GRAPH]
    # Limits too: a quota on limits rejects pods without them.
    # The queue's bytes exist in several copies at once.
    held_bytes = asynchronous.max_bytes if asynchronous else 0
    if webhook_secret(target):
        held_bytes *= 2  # a webhook that is tried again may outlive its result
    memory_mi = _PROXY_BASE_MI - (-(_COPIES_OF_QUEUE * target.spec.queue.max_bytes + held_bytes) // _MI)
    store = asynchronous.store if asynchronous else None
    credentials = store.secret_name if store else None
    grpc = [] if proxy.grpc_port is None else [_port("grpc", proxy.grpc_port)]
    resources = {"requests": _PROXY_REQUESTS, "limits": {"cpu": _PROXY_CPUS, "memory": f"{memory_mi}Mi"}}
    return {
        "name": PROXY,
        "image": proxy.image or target.defaults.proxy_image,
        **_pull_policy(proxy.image_pull_policy),
        "ports": [_port(target.scheme, HTTP_PORT), _port("admin", ADMIN_PORT), *grpc],
        "env": _merged(fixed, spec_variables(spec, Process.PROXY), as_json(proxy.env), kept),
        **({"envFrom": [{"secretRef": {"name": credentials}}]} if credentials else {}),
        "resources": as_json(proxy.resources) if proxy.resources else resources,
        "startupProbe": _STARTUP_PROBE,
        "readinessProbe": _probe(f"/readyz?wait_ms={_READY_PERIOD_S}000", period_s=_READY_PERIOD_S, failures=1),
        "livenessProbe": _probe("/healthz", period_s=10, failures=3),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _restricted(proxy.security_context, read_only=True),
        "volumeMounts": [
            *_socket_mount(target),
            _mount("tmp", "/tmp"),
            *secret_mounts(target),
            *proxy.volume_mounts,
        ],
    }


def _rollout(target: Target) -> list[Json]:
    """Return the variables for the comparison of a candidate, with any strategy of the rollout."""
    if not target.finds_candidates:
        return []
    candidates = f"{target.candidate_name}.{target.namespace}.svc:{HTTP_PORT}"
    return [variable("SHOAL_PROXY_CANDIDATES", candidates), variable(REVISION, revision_of(target.spec))]


def make_runtime(target: Target) -> Json:
    """Return the container of the runtime."""
    if target.foreign:
        return _foreign_runtime(target)
    # The runtime must stop before the kubelet kills it.
    shutdown_s = min(stop_time_s(target) - SHUTDOWN_MARGIN_S, _MAX_SHUTDOWN_S)
    fixed = [
        variable("SHOAL_RUNTIME_LISTEN", SOCKET),
        variable("SHOAL_RUNTIME_SHUTDOWN_TIMEOUT_S", str(shutdown_s)),
    ]
    if (instances := runtime_instances(target.spec.runtime)) > 1:
        fixed.append(variable("SHOAL_RUNTIME_INSTANCES", str(instances)))
    made = _model_container(target, RUNTIME, fixed, spec_variables(target.spec, Process.RUNTIME))
    return {**made, "volumeMounts": [*_socket_mount(target), *made["volumeMounts"]]}


def make_batch(target: Target, spec: BatchInferenceSpec, fixed: Iterable[Json], **more: Any) -> Json:
    """Return the container of a job, which runs the model on rows of files.

    Its environment has the credentials of the object stores.
    """
    variables = [*spec_variables(spec, Process.RUNTIME), *spec_variables(spec, Process.BATCH)]
    given = {"envFrom": [{"secretRef": {"name": spec.secret_name}}]} if spec.secret_name else {}
    made = _model_container(target, BATCH, [*ca_variables(target), *fixed], variables)
    return {**made, "volumeMounts": [*ca_mounts(target), *made["volumeMounts"]], **given, **more}


def address_of_pod() -> Json:
    """Return the environment variable with the pod's address."""
    return {"name": "POD_IP", "valueFrom": field_of("status.podIP")}


def make_model(target: Target) -> Json:
    """Return the init container that downloads the model, with credentials."""
    secret = target.spec.model.secret_name
    # A Secret may contain the registry's address itself.
    known = [] if secret else [literal(*each) for each in target.registry.items()]
    given = as_json(target.spec.runtime.env)
    # The container that fetches the model runs as the runtime's user, so that the runtime can read the files.
    context = target.spec.runtime.security_context if isinstance(target.spec.runtime.security_context, dict) else {}
    user = {name: context[name] for name in ("runAsUser", "runAsGroup") if name in context}
    return {
        "name": MODEL,
        "image": _runtime_image(target),
        **_pull_policy(target.spec.runtime.image_pull_policy),
        "command": ["python", "-m", "shoal_runtime", "fetch"],
        "env": _merged(
            known,
            _cache_variables(),
            ca_variables(target),
            _log_format(target),
            spec_variables(target.spec, Process.MODEL),
            given,
        ),
        **({"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}),
        "resources": as_json(target.spec.model.resources) if target.spec.model.resources else _FETCH_RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _restricted(user, read_only=True),
        "volumeMounts": [
            _mount("cache", CACHE_DIR),
            _mount("tmp", "/tmp"),
            *ca_mounts(target),
            *target.spec.runtime.volume_mounts,
        ],
    }


def make_user_containers(given: Iterable[Json]) -> list[Json]:
    """Return the containers that the spec adds.

    Their security context has restricted defaults, which the spec may override.
    """
    return [
        {
            "terminationMessagePolicy": "FallbackToLogsOnError",
            **each,
            "securityContext": _restricted(each.get("securityContext"), read_only=False),
        }
        for each in given
    ]


def _model_container(target: Target, name: str, fixed: Iterable[Json], given: Iterable[Json]) -> Json:
    """Return a container with Shoal's runtime."""
    fixed = [
        variable("SHOAL_MODEL_NAME", target.name),
        *fixed,
        *_cache_variables(),
        *_log_format(target),
        *([variable("SHOAL_MODEL_FETCHED", "true")] if target.downloads else ()),
    ]
    return {
        "name": name,
        "image": _runtime_image(target),
        **_pull_policy(target.spec.runtime.image_pull_policy),
        "env": _merged(fixed, given, as_json(target.spec.runtime.env)),
        "resources": as_json(target.spec.runtime.resources or {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _restricted(target.spec.runtime.security_context, read_only=True),
        "volumeMounts": [
            _mount("shm", "/dev/shm"),
            _mount("tmp", "/tmp"),
            _mount("cache", CACHE_DIR),
            *_model_mount(target),
            *target.spec.runtime.volume_mounts,
        ],
    }


def _foreign_runtime(target: Target) -> Json:
    runtime = target.spec.runtime
    entry = {"command": runtime.command, "args": runtime.args}
    live = {"path": "/v2/health/live", "port": runtime.port}
    # Probes every 5 s until the rollout's deadline.
    budget = max(1, target.spec.rollout.progress_deadline_seconds // 5)
    return {
        "name": RUNTIME,
        "image": runtime.image,
        **_pull_policy(runtime.image_pull_policy),
        **{key: list(value) for key, value in entry.items() if value is not None},
        "env": as_json(runtime.env),
        "resources": as_json(runtime.resources or {}),
        "startupProbe": {"httpGet": live, "periodSeconds": 5, "failureThreshold": budget},
        "livenessProbe": {"httpGet": live, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # A foreign server may need a writable root file system.
        "securityContext": _restricted(runtime.security_context, read_only=False),
        "volumeMounts": [
            _mount("shm", "/dev/shm"),
            _mount("tmp", "/tmp"),
            *_model_mount(target),
            *runtime.volume_mounts,
        ],
    }


def _address(host: str, port: int) -> str:
    # $(POD_IP) may be of either family; the proxy accepts brackets around both.
    return f"[{host}]:{port}" if ":" in host or "$(" in host else f"{host}:{port}"


def field_of(path: str) -> Json:
    """Return a ``valueFrom`` of a variable that reads a field of the pod."""
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def _merged(*groups: Iterable[Json]) -> list[Json]:
    """Join groups of variables; a later group's value replaces an earlier one's."""
    by_name = {entry["name"]: entry for group in groups for entry in group}
    return list(by_name.values())


def _log_format(target: Target) -> list[Json]:
    form = target.defaults.pod_log_format
    return [] if form is LogForm.TEXT else [variable(LOG_FORMAT, str(form))]


def _cache_variables() -> list[Json]:
    # The root file system is read-only: libraries need a writable home and cache.
    return [
        variable("HOME", "/tmp"),
        variable("XDG_CACHE_HOME", CACHE_DIR),
        variable("SHOAL_MODEL_CACHE_DIR", f"{CACHE_DIR}/models"),
    ]


def _runtime_image(target: Target) -> str:
    return target.spec.runtime.image or target.defaults.runtime_image


def _socket_mount(target: Target) -> list[Json]:
    return [] if target.foreign or target.graph else [_mount("run", SOCKET_DIR)]


def _model_mount(target: Target) -> list[Json]:
    volume = target.spec.model.volume
    if volume is None:
        return []
    return [{"name": "model", "mountPath": volume.mount_path, "readOnly": True}]


def _port(name: str, number: int) -> Json:
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def _mount(name: str, path: str) -> Json:
    return {"name": name, "mountPath": path}


def _probe(path: str, *, period_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": "admin"},
        "periodSeconds": period_s,
        "timeoutSeconds": 3 if period_s < 5 else 5,
        "failureThreshold": failures,
    }


def _pull_policy(given: ImagePullPolicy | None) -> Json:
    return {"imagePullPolicy": str(given)} if given else {}


def _restricted(given: Any, *, read_only: bool) -> Any:
    if not isinstance(given, dict | None):
        return given  # the API server reports the wrong type
    own = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": read_only, "capabilities": {"drop": ["ALL"]}}
    return {**own, **(given or {})}
