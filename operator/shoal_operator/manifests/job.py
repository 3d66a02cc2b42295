"""The Job or RayJob of a ``BatchInference``."""

from msgspec import structs

from shoal_operator.manifests.containers import BATCH, address_of_pod, field_of, make_batch, make_user_containers
from shoal_operator.manifests.deployment import make_init, make_shared_pod_settings, make_volumes
from shoal_operator.manifests.desired import Child
from shoal_operator.manifests.environment import ADMIN_PORT, variable
from shoal_operator.manifests.labels import make_object, pod_labels
from shoal_operator.manifests.origin import with_source
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.offline import BatchInferenceSpec, Engine
from shoal_schema.resource.service import InferenceServiceSpec

JOB = Child("Job", "batch/v1", "jobs")
RAY_JOB = Child("RayJob", "ray.io/v1", "rayjobs")
KINDS = {Engine.JOB: JOB, Engine.RAY: RAY_JOB}
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""The label of jobs in Kueue's queues; Kueue writes their ``suspend``."""
_SHOWN_CONTAINER = "kubectl.kubernetes.io/default-container"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_COMMAND = ["python", "-m", "shoal_runtime", "batch"]
_RAY_ENTRYPOINT = "python -m shoal_runtime batch-ray"
_EXIT_USAGE = 2
"""Exit code of the batch program for an invalid job."""
_FAILURE_RULES: list[Json] = [
    # Disruptions such as node drains do not count against the retry limit.
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    # An invalid job fails at each attempt, so do not retry.
    {"action": "FailJob", "onExitCodes": {"containerName": BATCH, "operator": "In", "values": [_EXIT_USAGE]}},
]
_HEAD_RESOURCES = {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}}
"""Resources of the head, which runs no tasks."""


def batch_target(
    resource: Json, spec: BatchInferenceSpec, defaults: OperatorProcess, resolved: str, registry: dict[str, str]
) -> Target:
    """Return the input of the manifests of a ``BatchInference``.

    Args:
        resource: the ``BatchInference``.
        spec: spec of the ``BatchInference``.
        defaults: settings of the operator.
        resolved: the version of a mutable model name; empty for a fixed version.
        registry: variables with the address of the model's registry.

    Raises:
        LocationError: the URI is invalid.
    """
    common = with_source(InferenceServiceSpec(model=spec.model, runtime=spec.runtime, pod=spec.pod), resolved)
    metadata = resource["metadata"]
    return Target(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        spec=common,
        defaults=defaults,
        registry=registry,
        batch=structs.replace(spec, model=common.model),
    )


def make_job(target: Target, batch: BatchInferenceSpec, queue: str = "") -> Json:
    """Return the Job or RayJob to create.

    The time to live is set later: Kubernetes must not delete the Job before its outcome is in the status.

    Args:
        target: the ``BatchInference`` with the operator's defaults.
        batch: spec of the ``BatchInference``, with the model's URI for the pods.
        queue: Kueue's queue, which starts the job; if empty, the job starts at once.
    """
    labels = {QUEUE_LABEL: queue} if queue else {}
    # Kueue starts the jobs in its queues.
    suspend = batch.suspend or bool(queue)
    kind = KINDS[batch.engine]
    if batch.engine is Engine.RAY:
        spec = {"suspend": suspend, **_ray_spec(target, batch)}
        return make_object(target, kind.kind, kind.api_version, labels=labels, spec=spec)
    fixed = [
        address_of_pod(),
        {"name": "SHOAL_BATCH_WORKER", "valueFrom": field_of(_INDEX)},
        variable("SHOAL_BATCH_PROGRESS_LISTEN", f"[$(POD_IP)]:{ADMIN_PORT}"),
        *_shared_variables(target, batch),
    ]
    ports = [{"name": "progress", "containerPort": ADMIN_PORT, "protocol": "TCP"}]
    worker = make_batch(target, batch, fixed, command=_COMMAND, ports=ports)
    spec = {
        "suspend": suspend,
        "completions": batch.parallelism,
        "parallelism": batch.parallelism,
        # Each index is one worker, which scores its own share of the shards.
        "completionMode": "Indexed",
        "backoffLimitPerIndex": batch.backoff_limit,
        "podFailurePolicy": {"rules": _FAILURE_RULES},
        **_deadline(batch),
        "template": _template(target, worker, restartPolicy="Never"),
    }
    return make_object(target, kind.kind, kind.api_version, labels=labels, spec=spec)


def _deadline(batch: BatchInferenceSpec) -> Json:
    most = batch.active_deadline_seconds
    return {"activeDeadlineSeconds": most} if most else {}


def _shared_variables(target: Target, batch: BatchInferenceSpec) -> list[Json]:
    return [variable("SHOAL_BATCH_WORKERS", str(batch.parallelism)), variable("SHOAL_BATCH_RUN", target.uid)]


def _template(target: Target, container: Json, **more: str) -> Json:
    pod = target.spec.pod
    # By default the namespace's default account; its token is not mounted.
    account = {"serviceAccountName": pod.service_account_name} if pod.service_account_name else {}
    spread = pod.topology_spread_constraints
    return {
        "metadata": {
            "labels": pod_labels(target),
            "annotations": {_SHOWN_CONTAINER: BATCH, **(pod.annotations or {})},
        },
        "spec": {
            **make_init(target),
            "containers": [container, *make_user_containers(pod.containers)],
            "volumes": make_volumes(target),
            **account,
            **make_shared_pod_settings(target),
            **({"topologySpreadConstraints": list(spread)} if spread else {}),
            **more,
        },
    }


def _ray_spec(target: Target, batch: BatchInferenceSpec) -> Json:
    container = make_batch(target, batch, _shared_variables(target, batch))
    count = dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), batch.parallelism)
    head = _template(target, {**container, "resources": _HEAD_RESOURCES})
    ttl = batch.ttl_seconds_after_finished
    return {
        "entrypoint": _RAY_ENTRYPOINT,
        "shutdownAfterJobFinishes": True,
        "backoffLimit": batch.backoff_limit,
        **_deadline(batch),
        # Deletes the Ray cluster alone: the RayJob stays, with its result.
        **({"ttlSecondsAfterFinished": ttl} if ttl is not None else {}),
        "rayClusterSpec": {
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": head},
            "workerGroupSpecs": [
                {"groupName": "workers", **count, "rayStartParams": {}, "template": _template(target, container)}
            ],
        },
    }
