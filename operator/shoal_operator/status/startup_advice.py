"""Advice on pods that do not become ready, for messages of conditions."""

from shoal_operator.children.observation import dig
from shoal_operator.children.pods import unready_containers, waits_for_volumes
from shoal_operator.manifests.containers import PROXY
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.manifests.labels import selector_text
from shoal_operator.manifests.secrets import keys_secret
from shoal_operator.status.evidence import Evidence
from shoal_schema.guides import guide

_MOUNTED = {"secret": "secretName", "configMap": "name", "persistentVolumeClaim": "claimName"}
"""By kind of volume, the field that names the mounted object."""


def waiting_advice(evidence: Evidence) -> str:
    """Return the probable cause of the newest pods' wait, and the command for details."""
    scheduler = evidence.target and evidence.target.spec.pod.scheduler_name
    with_source = not evidence.new_pods or any(dig(pod, "spec", "nodeName") for pod in evidence.new_pods)
    if scheduler and not with_source:
        return f". The scheduler {scheduler} (pod.schedulerName) has not assigned a node. Check that it runs"
    return _volume_advice(evidence) or proxy_advice(evidence)


def _volume_advice(evidence: Evidence) -> str:
    """Return the mounted objects that may be missing, if no container started."""
    if evidence.target is None or not (evidence.new_pods and all(map(waits_for_volumes, evidence.new_pods))):
        return ""
    spec = evidence.target.spec
    bundle = spec.model.ca_bundle
    secrets = {
        "access.apiKeys": keys_secret(spec),
        "tls.secretName": spec.tls.secret_name if spec.tls else None,
        "tls.clientCaSecretName": spec.tls.client_ca_secret_name if spec.tls else None,
        "model.caBundle": bundle.secret_name if bundle else None,
    }
    mounted = [f"the Secret {name} of {path}" for path, name in secrets.items() if name]
    if bundle and bundle.config_map_name:
        mounted.append(f"the ConfigMap {bundle.config_map_name} of model.caBundle")
    for volume in spec.pod.volumes:
        for kind, key in _MOUNTED.items():
            if name := dig(volume, kind, key):
                mounted.append(f"the {kind} {name} of pod.volumes")
    if not mounted:
        return ""
    pods = f"--namespace {evidence.namespace} --selector {selector_text(evidence.name)}"
    return (
        f". Pods mount {', '.join(mounted)}: kubectl describe pods {pods} shows what is missing. Pods start once it"
        " exists"
    )


def proxy_advice(evidence: Evidence) -> str:
    """Return the command that shows why a running proxy is not ready, or ""."""
    if PROXY not in unready_containers(evidence.new_pods):
        return ""
    pods = f"--namespace {evidence.namespace} --selector {selector_text(evidence.name)}"
    logs = f"kubectl logs {pods} --container {PROXY}"
    if secret := evidence.target and keys_secret(evidence.target.spec):
        logs = f"The Secret {secret} of access.apiKeys must contain a key{guide('how-to/access', ' (', ')')}. {logs}"
    return f". {logs} shows why (event=not_ready), and so does /readyz on its port {ADMIN_PORT}"
