"""Problems of a service's pods, with remedies.

Each check returns the ``Problem`` of one pod, or None; ``CHECKS`` lists them by importance. A ready pod has no problem,
even if it failed before.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from shoal_operator.children.observation import dig
from shoal_operator.manifests.containers import BATCH, MODEL, PROXY, RUNTIME
from shoal_operator.manifests.environment import CLIENT_CA_DIR, TLS_DIR
from shoal_operator.manifests.labels import TEMPLATE_HASH_ANNOTATION
from shoal_schema.fields.declaring import Json
from shoal_schema.fields.redaction import redacted
from shoal_schema.interfaces.progress import JobProgress
from shoal_schema.process.field_names import with_field_names
from shoal_schema.process.log_lines import read
from shoal_schema.resource.conditions import Reason

_IMAGE_REASONS = frozenset({
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "RegistryUnavailable",
})  # fmt: skip
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*": (\w+: )?')
"""The kubelet's prefix of the cause from the second attempt on; the message already names the image."""
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_MISSING_SECRET = re.compile(r'secret "(?P<name>[^"]+)" not found')
_LOAD_FAILED_EXIT = 3
_DEVICE_LOST_EXIT = 4
_TERMINATED_EXIT = 128 + 15
"""Ended by SIGTERM. In a pod that is not deleted, the kubelet sends it after a failed startup or liveness probe."""
_MAX_MESSAGE_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason and message for a pod that does not serve."""

    reason: Reason
    message: str


def is_ready(pod: Json) -> bool:
    """Return whether the pod's condition Ready is true."""
    conditions = dig(pod, "status", "conditions", default=[])
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def is_leaving(pod: Json) -> bool:
    """Return whether the pod is being deleted or has ended."""
    ended = dig(pod, "status", "phase") in ("Failed", "Succeeded")
    return ended or dig(pod, "metadata", "deletionTimestamp") is not None


def template_hash(holder: Json) -> str | None:
    """Return the template hash of a pod or of a pod template."""
    hash_text: str | None = dig(holder, "metadata", "annotations", TEMPLATE_HASH_ANNOTATION)
    return hash_text


def deployed_hash(deployment: Json) -> str | None:
    """Return the template hash of a Deployment's pods; None for an empty object."""
    return template_hash(dig(deployment, "spec", "template", default={}))


def unready_containers(pods: Iterable[Json]) -> list[str]:
    """Return the names of containers that are not ready, each once."""
    waiting = (pod for pod in pods if not is_leaving(pod) and not is_ready(pod))
    names = (status["name"] for pod in waiting for status in _statuses(pod) if not status.get("ready"))
    return sorted(set(names))


def runs(pod: Json, container: str) -> bool:
    """Return whether a container of the pod is running."""
    return dig(_status_of(pod, container), "state", "running") is not None


def waits_for_volumes(pod: Json) -> bool:
    """Return whether the pod has a node but no container has ever started."""
    states = [dig(status, "state", default={}) for status in _statuses(pod)]
    return bool(states) and not any("running" in state or "terminated" in state for state in states)


def find_problem(pods: Iterable[Json]) -> Problem | None:
    """Return the most important problem of pods that are not ready."""
    waiting = [pod for pod in pods if not is_leaving(pod) and not is_ready(pod)]
    found = (check(pod) for check in CHECKS for pod in waiting)
    return next((problem for problem in found if problem), None)


def image_problem(pod: Json) -> Problem | None:
    """Return the problem of an image that cannot be pulled."""
    for status, detail in _waiting(pod, _IMAGE_REASONS):
        image = f"{status.get('image', '')} of container {status['name']}"
        # A container waits for the images of its volumes too; the kubelet's message names the image.
        for volume in dig(pod, "spec", "volumes", default=[]):
            reference = dig(volume, "image", "reference")
            if reference and reference in detail:
                where = "model.uri" if volume["name"] == MODEL else f"volume {volume['name']}"
                image = f"{reference} of {where}"
                break
        text = f"the image {image} cannot be pulled: {_BACK_OFF.sub('', detail)}"
        return Problem(Reason.IMAGE_PULL_FAILED, _sentence(text))
    return None


def config_problem(pod: Json) -> Problem | None:
    """Return the problem of a container that cannot be created."""
    for status, detail in _waiting(pod, _CONFIG_REASONS):
        namespace = dig(pod, "metadata", "namespace", default="default")
        containers = dig(pod, "spec", "initContainers", default=[])
        ours = [dig(source, "secretRef", "name") for each in containers for source in each.get("envFrom") or ()]
        missing = _MISSING_SECRET.search(detail)
        advice = ""
        if status["name"] == MODEL and missing and missing["name"] in ours:
            # The kubelet retries, so the pod continues once the Secret exists.
            advice = (
                f". model.secretName names it. Create it: kubectl create secret generic {missing['name']} --namespace"
                f" {namespace} --from-literal=NAME=VALUE; the pod then continues without a restart"
            )
        text = f"container {status['name']} cannot be created: {detail}{advice}"
        return Problem(Reason.CONTAINER_CONFIG_INVALID, _sentence(text))
    return None


def download_problem(pod: Json) -> Problem | None:
    """Return the problem of a model that cannot be downloaded."""
    if ended := _crash(_status_of(pod, MODEL)):
        text = f"the model cannot be downloaded: {_last_line(ended).replace(' cannot be downloaded: ', ': ', 1)}"
        return Problem(Reason.MODEL_DOWNLOAD_FAILED, _sentence(text))
    return None


def crash_problem(pod: Json) -> Problem | None:
    """Return the problem of a container that ended with a failure.

    If several containers failed, the runtime comes first, then the proxy.
    """
    for container, reason in ((RUNTIME, Reason.RUNTIME_CRASHED), (PROXY, Reason.PROXY_CRASHED)):
        if ended := _crash(_status_of(pod, container)):
            return Problem(reason, _sentence(_ended_text(pod, container, ended)))
    for status in _statuses(pod):
        if status["name"] not in (MODEL, RUNTIME, PROXY) and (ended := _crash(status)):
            text = f"container {status['name']} ended (exit code {ended.get('exitCode')}): {_last_line(ended)}"
            return Problem(Reason.CONTAINER_CRASHED, _sentence(text))
    return None


def batch_problem(pod: Json) -> Problem | None:
    """Return the problem of a job's pod that ended with unfinished work."""
    ended = _crash(_status_of(pod, BATCH))
    if ended is None:
        return None
    if ended.get("reason") == "OOMKilled":
        text = "a pod exceeded its memory limit and was killed. Raise runtime.resources.limits.memory, or set a"
        return Problem(Reason.RUNTIME_CRASHED, f"{text} smaller batchSize")
    # The batch program writes its error to its progress, which is more precise than the last line of its log.
    progress = last_progress(pod)
    own = with_field_names(progress.message, "set") if progress and progress.message else ""
    said = own or _last_line(ended)
    code = int(ended.get("exitCode") or 0)
    what = "could not load the model" if code == _LOAD_FAILED_EXIT else "ended"
    text = f"a pod {what} (exit code {code}): {redacted(said)[-_MAX_MESSAGE_LENGTH:].removeprefix(_NOT_LOADED)}"
    return Problem(Reason.RUNTIME_CRASHED, _sentence(text))


def last_progress(pod: Json) -> JobProgress | None:
    """Return the progress in an ended pod's termination message, or None."""
    words = dig(_status_of(pod, BATCH), "state", "terminated", "message", default="")
    try:
        return _PROGRESS.decode(words)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError):
        return None


_PROGRESS = msgspec.json.Decoder(JobProgress)


def scheduling_problem(pod: Json) -> Problem | None:
    """Return the problem of a pod that fits no node."""
    conditions = dig(pod, "status", "conditions", default=[])
    scheduled: Json = next((c for c in conditions if c.get("type") == "PodScheduled"), {})
    if scheduled.get("status") != "False" or scheduled.get("reason") != "Unschedulable":
        return None
    message = scheduled.get("message", "")
    # Extended resources such as nvidia.com/gpu have a domain in their name.
    limits = (dig(each, "resources", "limits", default={}) for each in dig(pod, "spec", "containers", default=[]))
    devices = sorted({name for limit in limits for name in limit if "/" in name})
    missing = [name for name in devices if f"Insufficient {name}" in message]
    if missing:
        names = " and ".join(missing)
        surge = ", request less, or set rollout.maxSurge 0 and maxUnavailable 1 when the old pod holds it."
        # Pods of jobs have no proxy and no rollout.
        containers = {each["name"] for each in dig(pod, "spec", "containers", default=[])}
        advice = surge if PROXY in containers else ", or request less."
        return Problem(Reason.INSUFFICIENT_GPU, _sentence(f"no node has a free {names}: {message} Add a node{advice}"))
    # The scheduler's message may be about the claim that contains the model.
    volumes: list[Json] = dig(pod, "spec", "volumes", default=[])
    claims = (dig(each, "persistentVolumeClaim", "claimName") for each in volumes if each.get("name") == MODEL)
    claim, namespace = next(claims, None), dig(pod, "metadata", "namespace", default="default")
    advice = ""
    if claim and f'"{claim}" not found' in message:
        advice = f" model.uri or model.volume names this claim: create it in namespace {namespace}, or name another."
    elif claim and "persistentvolumeclaim" in message.lower() and "unbound" in message:
        describe = f"kubectl describe persistentvolumeclaim {claim} --namespace {namespace}"
        advice = f" It may be the claim of model.uri or model.volume: {describe} shows why it is not bound."
    return Problem(Reason.UNSCHEDULABLE, _sentence(f"no node fits the pod: {message}{advice}"))


_NOT_LOADED = "the model cannot be loaded: "
"""The prefix of the runtime's message, which the problem already states."""

Check = Callable[[Json], Problem | None]
CHECKS: tuple[Check, ...] = (image_problem, config_problem, download_problem, crash_problem, scheduling_problem)


def _statuses(pod: Json) -> list[Json]:
    init: list[Json] = dig(pod, "status", "initContainerStatuses", default=[])
    main: list[Json] = dig(pod, "status", "containerStatuses", default=[])
    return [*init, *main]


def _waiting(pod: Json, reasons: frozenset[str]) -> Iterator[tuple[Json, str]]:
    """Yield status and message of containers that wait for one of ``reasons``."""
    for status in _statuses(pod):
        waiting = dig(status, "state", "waiting", default={})
        if waiting.get("reason") in reasons:
            yield status, waiting.get("message") or waiting["reason"]


def _status_of(pod: Json, container: str) -> Json:
    return next((status for status in _statuses(pod) if status.get("name") == container), {})


def _crash(status: Json) -> Json | None:
    """Return the container's last termination if it was a failure, else None."""
    for state in ("state", "lastState"):
        ended: Json | None = dig(status, state, "terminated")
        if ended is not None:
            return ended if ended.get("exitCode") != 0 else None
    return None


def _ended_text(pod: Json, container: str, ended: Json) -> str:
    code = int(ended.get("exitCode") or 0)
    if ended.get("reason") == "OOMKilled":
        remedy = f"Raise {container}.resources.limits.memory, or lower batching.maxBatchSize"
        return f"the {container} exceeded its memory limit and was killed. {remedy}"
    # SIGTERM outside a deletion comes from a failed probe, where the container has one.
    found: Json = next((each for each in dig(pod, "spec", "containers", default=[]) if each["name"] == container), {})
    if code == _TERMINATED_EXIT and ("startupProbe" in found or "livenessProbe" in found):
        remedy = {
            PROXY: "Give it more CPU (proxy.resources), or reduce the load of its node",
            RUNTIME: "Give it more CPU (runtime.resources), or more time to start (rollout.progressDeadlineSeconds)",
        }[container]
        line = f". Its last line: {_last_line(ended)}" if str(ended.get("message") or "").strip() else ""
        return (
            f"the {container} did not respond to its startup or liveness probe in time and was stopped (exit code"
            f" {_TERMINATED_EXIT}). {remedy}. kubectl describe pod shows the probe{line}"
        )
    what = {
        _LOAD_FAILED_EXIT: "could not load the model",
        _DEVICE_LOST_EXIT: "lost its device, or a batch outlived runtime.forwardTimeoutSeconds",
    }.get(code, "crashed") if container == RUNTIME else "crashed"  # fmt: skip
    said = _last_line(ended).removeprefix(_NOT_LOADED)
    advice = ""
    # The proxy names files of the mounted Secrets.
    if f"{TLS_DIR}/" in said or f"{CLIENT_CA_DIR}/" in said:
        advice = (
            ". The files come from the Secret of tls.secretName, which must contain tls.crt and the matching tls.key,"
            " and from tls.clientCaSecretName (ca.crt)"
        )
    return f"the {container} {what} (exit code {code}): {said}{advice}"


def _last_line(ended: Json) -> str:
    """Return the last line of a container's log, without time and logger, which differ at each restart."""
    text = str(ended.get("message") or "").strip() or str(ended.get("reason") or "no message")
    line = text.splitlines()[-1].strip()
    said = read(line)
    return with_field_names(redacted(said.message if said else line), "set")[-_MAX_MESSAGE_LENGTH:]


def _sentence(text: str) -> str:
    # Messages must not name the pod, as each replacement would change the status.
    return re.sub(r"\s+", " ", text).strip()
