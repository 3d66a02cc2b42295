"""What pods that are not ready may wait for, in words that a condition ends with."""

from shoal_operator.manifests.containers import PROXY, keys_secret
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.manifests.labels import selector_text
from shoal_operator.planning.evidence import Evidence
from shoal_operator.planning.observation import dig
from shoal_operator.planning.pods import unready_containers, waits_for_volumes
from shoal_schema.resource.service import InferenceServiceSpec

_MOUNTED = {"secret": "secretName", "configMap": "name", "persistentVolumeClaim": "claimName"}
"""Kinds of volumes of something that has a name, and where that stands."""


def waiting_advice(evidence: Evidence) -> str:
    """Return what the newest pods seem to wait for, and which command tells more."""
    scheduler = evidence.target and evidence.target.spec.pod.scheduler_name
    placed = not evidence.new_pods or any(dig(pod, "spec", "nodeName") for pod in evidence.new_pods)
    if scheduler and not placed:
        return f". The scheduler {scheduler} (pod.schedulerName) has not assigned a node. Check that it runs"
    return _volume_advice(evidence) or proxy_advice(evidence)


def _volume_advice(evidence: Evidence) -> str:
    """Return what pods mount that may be missing, where none of their containers was ever started."""
    mounted = _volumes_named(evidence.target.spec) if evidence.target else []
    if not (mounted and evidence.new_pods and all(map(waits_for_volumes, evidence.new_pods))):
        return ""
    pods = f"--namespace {evidence.namespace} --selector {selector_text(evidence.name)}"
    return (
        f"; none starts without {', '.join(mounted)}: kubectl describe pods {pods} names what is missing, and once it"
        " is there pods go on by themselves"
    )


def proxy_advice(evidence: Evidence) -> str:
    """Return where a proxy that runs and is not ready says why."""
    if PROXY not in unready_containers(evidence.new_pods):
        return ""
    pods = f"--namespace {evidence.namespace} --selector {selector_text(evidence.name)}"
    logs = f"kubectl logs {pods} --container {PROXY}"
    if secret := evidence.target and keys_secret(evidence.target.spec):
        logs = f"the Secret {secret} of access.apiKeys must hold a key (docs/how-to/access.md); {logs}"
    return f"; {logs} tells why (event=not_ready), as /readyz on its port {ADMIN_PORT} does"


def _volumes_named(spec: InferenceServiceSpec) -> list[str]:
    """Return what the spec names that pods mount, and that may not be there: kind and name, and the field."""
    bundle = spec.model.ca_bundle
    secrets = {
        "access.apiKeys": keys_secret(spec),
        "tls.secretName": spec.tls.secret_name if spec.tls else None,
        "tls.clientCaSecretName": spec.tls.client_ca_secret_name if spec.tls else None,
        "model.caBundle": bundle.secret_name if bundle else None,
    }
    named = [f"the Secret {name} of {path}" for path, name in secrets.items() if name]
    if bundle and bundle.config_map_name:
        named.append(f"the ConfigMap {bundle.config_map_name} of model.caBundle")
    for volume in spec.pod.volumes:
        for kind, key in _MOUNTED.items():
            if name := dig(volume, kind, key):
                named.append(f"the {kind} {name} of pod.volumes")
    return named
