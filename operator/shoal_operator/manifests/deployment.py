"""The Deployment and its pod template."""

from shoal_operator.manifests.containers import (
    API_KEYS,
    PROXY,
    RUNTIME,
    ca_volume,
    keys_secret,
    make_given,
    make_model,
    make_proxy,
    make_runtime,
    stop_time_s,
    tls_volumes,
)
from shoal_operator.manifests.labels import (
    SPEC_HASH_ANNOTATION,
    TEMPLATE_HASH_ANNOTATION,
    digest,
    make_object,
    object_labels,
    selector_labels,
)
from shoal_operator.manifests.target import Target
from shoal_schema.declaring import Json, as_json
from shoal_schema.resource.model import ModelVolume

_SHOWN_CONTAINER = "kubectl.kubernetes.io/default-container"
"""What `kubectl logs` and `kubectl exec` take when no container is named."""
_NO_PODS_BUSINESS = frozenset({"replicas", "scaling", "route"})
"""Parts of the spec that change no pod."""


def make_deployment(target: Target) -> Json:
    """Return the Deployment of a service's pods."""
    rollout = target.spec.rollout
    spec: Json = {
        "replicas": target.replicas,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": rollout.progress_deadline_seconds,
        **({"minReadySeconds": rollout.min_ready_seconds} if rollout.min_ready_seconds else {}),
        "selector": {"matchLabels": selector_labels(target.name)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "template": _template(target),
    }
    annotations = {SPEC_HASH_ANNOTATION: _spec_hash(target)}
    return make_object(target, "Deployment", "apps/v1", annotations=annotations, spec=spec)


def _spec_hash(target: Target) -> str:
    """Return what tells another spec from another operator: all that pods are made of, less what is the operator's."""
    spec = {name: value for name, value in as_json(target.spec).items() if name not in _NO_PODS_BUSINESS}
    graph = {"graph": as_json(target.graph)} if target.graph else {}
    return digest({"spec": spec, "siblingsTaken": target.siblings_taken, **graph})


def service_account_name(target: Target) -> str:
    """Return the account that the pods run as."""
    return target.spec.pod.service_account_name or target.name


def _template(target: Target) -> Json:
    """Return the pods' template; its hash tells new pods from old ones."""
    pod = target.spec.pod
    labels = {**(pod.labels or {}), **object_labels(target)}
    # What a user looks for first is what the model said; a pod's own annotation wins.
    shown = PROXY if target.graph else RUNTIME
    annotations: Json = {_SHOWN_CONTAINER: shown, **(pod.annotations or {})}
    template: Json = {"metadata": {"labels": labels, "annotations": annotations}, "spec": _pod_spec(target)}
    annotations[TEMPLATE_HASH_ANNOTATION] = digest(template)
    return template


def _pod_spec(target: Target) -> Json:
    pod = target.spec.pod
    runtimes = [] if target.graph else [make_runtime(target)]
    return {
        **make_init(target),
        # Kubelets start them in this order, one after the other, and the runtime takes longer to be ready. The Service
        # finds its port by name in the first that has it.
        "containers": [*runtimes, make_proxy(target), *make_given(pod.containers)],
        "volumes": make_volumes(target),
        "serviceAccountName": service_account_name(target),
        **make_surroundings(target),
        "terminationGracePeriodSeconds": stop_time_s(target),
        "topologySpreadConstraints": _spread(target),
    }


def make_init(target: Target) -> Json:
    """Return what runs before the containers."""
    # What brings credentials, or a way to the network, comes before who downloads.
    init = [*make_given(target.spec.pod.init_containers), *([make_model(target)] if target.downloads else ())]
    return {"initContainers": init} if init else {}


def make_surroundings(target: Target) -> Json:
    """Return what pods of services and of jobs have alike: who they are to the cluster, and where they may run."""
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _security_context(target),
        **_tolerations(target),
        **_passed_through(target),
    }


def _passed_through(target: Target) -> Json:
    pod = target.spec.pod
    given: Json = {
        "nodeSelector": pod.node_selector,
        "affinity": pod.affinity,
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
        "schedulerName": pod.scheduler_name,
        "imagePullSecrets": as_json(pod.image_pull_secrets),
        "resourceClaims": as_json(target.spec.runtime.resource_claims),
    }
    return {key: value for key, value in given.items() if value}


def _security_context(target: Target) -> Json:
    # Anyone may write to an emptyDir: containers share folders without a group. OpenShift admits only its own groups.
    group = target.defaults.pod_fs_group
    return {
        "runAsNonRoot": True,
        **({"fsGroup": group} if group is not None else {}),
        "seccompProfile": {"type": "RuntimeDefault"},
        **(target.spec.pod.security_context or {}),
    }


def _tolerations(target: Target) -> Json:
    """Tolerate the taint that GPU nodes usually carry: the resource's own name."""
    resources = target.spec.runtime.resources
    limits = resources.limits if resources else {}
    own = [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in sorted(limits) if "/" in name]
    tolerations = [*own, *as_json(target.spec.pod.tolerations)]
    return {"tolerations": tolerations} if tolerations else {}


def _spread(target: Target) -> list[Json]:
    given = target.spec.pod.topology_spread_constraints
    if given is not None:
        return list(given)
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector_labels(target.name)},
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


def make_volumes(target: Target) -> list[Json]:
    """Return the volumes of the containers, and those of the spec."""
    memory = {"medium": "Memory"}
    shared = {"name": "run", "emptyDir": {**memory, "sizeLimit": "16Mi"}}
    cache: Json = {"name": "cache", "emptyDir": {}}
    own = [] if target.foreign else [cache] if target.batch else [shared, cache]
    most = target.spec.runtime.shared_memory
    shm = {"name": "shm", "emptyDir": {**memory, **({"sizeLimit": most.written} if most else {})}}
    of_runtime = [] if target.graph else [*own, shm]
    volume = target.spec.model.volume
    model = [{"name": "model", **_model_source(volume)}] if volume else []
    secret = keys_secret(target.spec)
    # Not optional: a pod without it would let nobody in, and waits for it instead.
    keys = [{"name": API_KEYS, "secret": {"secretName": secret}}] if secret else []
    ours = [
        *of_runtime,
        {"name": "tmp", "emptyDir": {}},
        *model,
        *tls_volumes(target),
        *keys,
        *ca_volume(target),
    ]
    return [*ours, *target.spec.pod.volumes]


def _model_source(volume: ModelVolume) -> Json:
    sources = {name: value for name, value in as_json(volume).items() if name != "mountPath"}
    if not sources:
        raise ValueError("a model volume without a source")  # the schema's rule refuses it
    if "persistentVolumeClaim" in sources:
        sources["persistentVolumeClaim"]["readOnly"] = True
    return sources
