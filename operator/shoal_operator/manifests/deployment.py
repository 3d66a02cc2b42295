"""The Deployment of a service, with the pod template."""

from shoal_operator.manifests.containers import (
    PROXY,
    RUNTIME,
    make_model,
    make_proxy,
    make_runtime,
    make_user_containers,
)
from shoal_operator.manifests.labels import (
    POD_SPEC_ANNOTATION,
    REVISION_ANNOTATION,
    SPEC_HASH_ANNOTATION,
    TEMPLATE_HASH_ANNOTATION,
    digest,
    make_object,
    pod_labels,
    selector_labels,
)
from shoal_operator.manifests.revisions import pod_spec_text, revision_of
from shoal_operator.manifests.secrets import ca_volume, secret_volumes
from shoal_operator.manifests.stop_times import stop_time_s
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json, as_json

_SHOWN_CONTAINER = "kubectl.kubernetes.io/default-container"
"""The default container of `kubectl logs` and `kubectl exec`."""
_WITHOUT_EFFECT_ON_PODS = frozenset({"replicas", "scaling", "route"})
"""Parts of the spec that change no pod."""
_OF_CANDIDATES = frozenset({"strategy", "steps", "compare", "onFailure", "sticky"})
"""Parts of `rollout` that change no pod."""


def make_deployment(target: Target) -> Json:
    """Return the Deployment of a service's pods."""
    rollout, pod = target.spec.rollout, target.spec.pod
    # kubectl logs shows the model's output by default; an annotation of the spec wins.
    shown = PROXY if target.graph else RUNTIME
    runtimes = [] if target.graph else [make_runtime(target)]
    spread: list[Json] = list(pod.topology_spread_constraints or ())
    if pod.topology_spread_constraints is None:
        spread = [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": selector_labels(target)},
                "matchLabelKeys": ["pod-template-hash"],
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ]
    template: Json = {
        "metadata": {
            "labels": pod_labels(target),
            "annotations": {_SHOWN_CONTAINER: shown, **(pod.annotations or {})},
        },
        "spec": {
            **make_init(target),
            # The kubelet starts containers in this order, and the runtime takes longest to become ready. The Service
            # finds its port by name in the first container that has it.
            "containers": [*runtimes, make_proxy(target), *make_user_containers(pod.containers)],
            "volumes": make_volumes(target),
            "serviceAccountName": service_account_name(target),
            **make_shared_pod_settings(target),
            "terminationGracePeriodSeconds": stop_time_s(target),
            "topologySpreadConstraints": spread,
        },
    }
    # The hash distinguishes pods of the newest template from older ones.
    template["metadata"]["annotations"][TEMPLATE_HASH_ANNOTATION] = digest(template)
    spec: Json = {
        "replicas": target.replicas,
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": rollout.progress_deadline_seconds,
        **({"minReadySeconds": rollout.min_ready_seconds} if rollout.min_ready_seconds else {}),
        "selector": {"matchLabels": selector_labels(target)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "template": template,
    }
    return make_object(target, "Deployment", "apps/v1", annotations=spec_annotations(target), spec=spec)


def spec_annotations(target: Target) -> Json:
    """Return the annotations of a Deployment about the spec of its pods."""
    # Hash only what the user chose: another operator release must not look like a changed spec.
    hashed: Json = {name: value for name, value in as_json(target.spec).items() if name not in _WITHOUT_EFFECT_ON_PODS}
    if "rollout" in hashed:
        hashed["rollout"] = {name: value for name, value in hashed["rollout"].items() if name not in _OF_CANDIDATES}
    graph = {"graph": as_json(target.graph)} if target.graph else {}
    annotations = {
        SPEC_HASH_ANNOTATION: digest({"spec": hashed, "peersTaken": target.peers_name_taken, **graph}),
    }
    # A graph has no model, so nothing of it is compared.
    if target.graph is None:
        annotations |= {REVISION_ANNOTATION: revision_of(target.spec), POD_SPEC_ANNOTATION: pod_spec_text(target.spec)}
    return annotations


def service_account_name(target: Target) -> str:
    """Return the name of the pods' ServiceAccount."""
    return target.spec.pod.service_account_name or target.name


def make_init(target: Target) -> Json:
    """Return the part of a pod spec with the init containers."""
    # Those of the spec first: they may provide credentials or network access for the download.
    init = [*make_user_containers(target.spec.pod.init_containers), *([make_model(target)] if target.downloads else ())]
    return {"initContainers": init} if init else {}


def make_shared_pod_settings(target: Target) -> Json:
    """Return the settings that pods of services and of jobs share: security, tolerations, scheduling."""
    # Tolerate the usual taint of GPU nodes, which is the name of the resource.
    resources = target.spec.runtime.resources
    limits = resources.limits if resources else {}
    own = [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in sorted(limits) if "/" in name]
    pod, group = target.spec.pod, target.defaults.pod_fs_group
    tolerations = [*own, *as_json(pod.tolerations)]
    given: Json = {
        "nodeSelector": pod.node_selector,
        "affinity": pod.affinity,
        "priorityClassName": pod.priority_class_name,
        "runtimeClassName": pod.runtime_class_name,
        "schedulerName": pod.scheduler_name,
        "imagePullSecrets": as_json(pod.image_pull_secrets),
        "resourceClaims": as_json(target.spec.runtime.resource_claims),
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Any user may write to an emptyDir, so containers share directories without a group. OpenShift admits only
        # groups of its own choice.
        "securityContext": {
            "runAsNonRoot": True,
            **({"fsGroup": group} if group is not None else {}),
            "seccompProfile": {"type": "RuntimeDefault"},
            **(pod.security_context or {}),
        },
        **({"tolerations": tolerations} if tolerations else {}),
        **{key: value for key, value in given.items() if value},
    }


def make_volumes(target: Target) -> list[Json]:
    """Return the volumes of Shoal's containers and of the spec."""
    memory = {"medium": "Memory"}
    shared = {"name": "run", "emptyDir": {**memory, "sizeLimit": "16Mi"}}
    cache: Json = {"name": "cache", "emptyDir": {}}
    # A job has no socket; a foreign runtime has neither socket nor cache.
    own = [] if target.foreign else [cache] if target.batch else [shared, cache]
    most = target.spec.runtime.shared_memory
    shm = {"name": "shm", "emptyDir": {**memory, **({"sizeLimit": most.written} if most else {})}}
    of_runtime = [] if target.graph else [*own, shm]
    volume = target.spec.model.volume
    model = []
    if volume:
        sources = {name: value for name, value in as_json(volume).items() if name != "mountPath"}
        if not sources:
            raise ValueError("a model volume has no source")  # unreachable: the schema requires one
        if "persistentVolumeClaim" in sources:
            sources["persistentVolumeClaim"]["readOnly"] = True
        model = [{"name": "model", **sources}]
    ours = [
        *of_runtime,
        {"name": "tmp", "emptyDir": {}},
        *model,
        *secret_volumes(target),
        *ca_volume(target),
    ]
    # The spec's own volumes come last.
    return [*ours, *target.spec.pod.volumes]
