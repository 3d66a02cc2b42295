"""Field numbers of the protobuf messages that Go clients send.

The table covers `kubectl create KIND NAME`, reviews, tokens, and objects that controllers write: Leases, Events, the
status of an Ingress. Source: the ``generated.proto`` files of k8s.io/api and k8s.io/apimachinery.

Each entry is the name of a message and its fields in JSON spelling, in the order of their numbers from 1. ``-`` is a
number without a field in JSON. ``&`` is a message whose fields are inlined in JSON. ``?`` follows a number or boolean
for which zero equals absent.
"""

from collections.abc import Mapping

_TABLE = """
apps.v1.Deployment: metadata spec status
apps.v1.DeploymentSpec: replicas selector template strategy minReadySeconds? revisionHistoryLimit paused? -
  progressDeadlineSeconds
apps.v1.DeploymentStatus: observedGeneration? replicas? updatedReplicas? availableReplicas? unavailableReplicas?
  conditions readyReplicas? collisionCount terminatingReplicas
apps.v1.DeploymentStrategy: type rollingUpdate
apps.v1.RollingUpdateDeployment: maxUnavailable maxSurge
authentication.v1.BoundObjectReference: kind apiVersion name uid
authentication.v1.TokenRequest: metadata spec status
authentication.v1.TokenRequestSpec: audiences - boundObjectRef expirationSeconds attestations
authentication.v1.TokenRequestStatus: token expirationTimestamp
authorization.v1.NonResourceAttributes: path verb
authorization.v1.ResourceAttributes: namespace verb group version resource subresource name fieldSelector
  labelSelector
authorization.v1.SelfSubjectAccessReview: metadata spec status
authorization.v1.SelfSubjectAccessReviewSpec: resourceAttributes nonResourceAttributes
authorization.v1.SubjectAccessReviewStatus: allowed reason evaluationError denied?
batch.v1.Job: metadata spec status
batch.v1.JobSpec: parallelism completions activeDeadlineSeconds selector manualSelector template backoffLimit
  ttlSecondsAfterFinished completionMode suspend podFailurePolicy backoffLimitPerIndex maxFailedIndexes
  podReplacementPolicy managedBy successPolicy
batch.v1.JobStatus: conditions startTime completionTime active? succeeded? failed? completedIndexes
  uncountedTerminatedPods ready failedIndexes terminating
coordination.v1.Lease: metadata spec
coordination.v1.LeaseSpec: holderIdentity leaseDurationSeconds acquireTime renewTime leaseTransitions strategy
  preferredHolder
core.v1.ConfigMap: metadata data binaryData immutable
core.v1.Container: name image command args workingDir ports env resources volumeMounts livenessProbe readinessProbe
  lifecycle terminationMessagePath imagePullPolicy securityContext stdin? stdinOnce? tty? envFrom
  terminationMessagePolicy volumeDevices startupProbe resizePolicy restartPolicy restartPolicyRules
core.v1.ContainerPort: name hostPort? containerPort protocol hostIP
core.v1.Event: metadata involvedObject reason message source firstTimestamp lastTimestamp count? type eventTime series
  action related reportingComponent reportingInstance
core.v1.EventSeries: count? lastObservedTime
core.v1.EventSource: component host
core.v1.LoadBalancerStatus: ingress
core.v1.LocalObjectReference: name
core.v1.Namespace: metadata spec status
core.v1.NamespaceSpec: finalizers
core.v1.NamespaceStatus: phase conditions
core.v1.ObjectReference: kind namespace name uid apiVersion resourceVersion fieldPath
core.v1.PodSpec: volumes containers restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy
  nodeSelector serviceAccountName serviceAccount nodeName hostNetwork? hostPID? hostIPC? securityContext
  imagePullSecrets hostname subdomain affinity schedulerName initContainers automountServiceAccountToken tolerations
  hostAliases priorityClassName priority dnsConfig shareProcessNamespace readinessGates runtimeClassName
  enableServiceLinks preemptionPolicy overhead topologySpreadConstraints ephemeralContainers setHostnameAsFQDN os
  hostUsers schedulingGates resourceClaims resources hostnameOverride - schedulingGroup evictionResponders
core.v1.PodTemplateSpec: metadata spec
core.v1.ResourceRequirements: limits requests claims
core.v1.Secret: metadata data type stringData immutable
core.v1.Service: metadata spec status
core.v1.ServiceAccount: metadata secrets imagePullSecrets automountServiceAccountToken
core.v1.ServicePort: name protocol port targetPort nodePort? appProtocol
core.v1.ServiceSpec: ports selector clusterIP type externalIPs - sessionAffinity loadBalancerIP
  loadBalancerSourceRanges externalName externalTrafficPolicy healthCheckNodePort? publishNotReadyAddresses?
  sessionAffinityConfig - - ipFamilyPolicy clusterIPs ipFamilies allocateLoadBalancerNodePorts loadBalancerClass
  internalTrafficPolicy trafficDistribution
core.v1.ServiceStatus: loadBalancer conditions
meta.v1.DeleteOptions: gracePeriodSeconds preconditions orphanDependents propagationPolicy dryRun
  ignoreStoreReadErrorWithClusterBreakingPotential
meta.v1.LabelSelector: matchLabels matchExpressions
meta.v1.LabelSelectorRequirement: key operator values
meta.v1.ManagedFieldsEntry: manager operation apiVersion time - fieldsType fieldsV1 subresource
meta.v1.ObjectMeta: name generateName namespace selfLink uid resourceVersion generation? creationTimestamp
  deletionTimestamp deletionGracePeriodSeconds labels annotations ownerReferences finalizers - - managedFields
meta.v1.OwnerReference: kind - name uid apiVersion controller blockOwnerDeletion
meta.v1.Preconditions: uid resourceVersion
networking.v1.HTTPIngressPath: path backend pathType
networking.v1.HTTPIngressRuleValue: paths
networking.v1.Ingress: metadata spec status
networking.v1.IngressBackend: - - resource service
networking.v1.IngressLoadBalancerIngress: ip hostname - ports
networking.v1.IngressLoadBalancerStatus: ingress
networking.v1.IngressPortStatus: port protocol error
networking.v1.IngressRule: host &networking.v1.IngressRuleValue
networking.v1.IngressRuleValue: http
networking.v1.IngressServiceBackend: name port
networking.v1.IngressSpec: defaultBackend tls rules ingressClassName
networking.v1.IngressStatus: loadBalancer
networking.v1.IngressTLS: hosts secretName
networking.v1.ServiceBackendPort: name number?
policy.v1.Eviction: metadata deleteOptions
policy.v1.PodDisruptionBudget: metadata spec status
policy.v1.PodDisruptionBudgetSpec: minAvailable selector maxUnavailable unhealthyPodEvictionPolicy
policy.v1.PodDisruptionBudgetStatus: observedGeneration? disruptedPods disruptionsAllowed currentHealthy
  desiredHealthy expectedPods conditions
rbac.v1.AggregationRule: clusterRoleSelectors
rbac.v1.ClusterRole: metadata rules aggregationRule
rbac.v1.ClusterRoleBinding: metadata subjects roleRef
rbac.v1.PolicyRule: verbs apiGroups resources resourceNames nonResourceURLs
rbac.v1.Role: metadata rules
rbac.v1.RoleBinding: metadata subjects roleRef
rbac.v1.RoleRef: apiGroup kind name
rbac.v1.Subject: kind apiGroup name namespace
"""


_LINES = (line.partition(":") for line in _TABLE.replace("\n  ", " ").strip().splitlines())
FIELDS: Mapping[str, tuple[str, ...]] = {name: tuple(fields.split()) for name, _, fields in _LINES}
"""Names of fields in the order of their numbers from 1, by the end of the definition's name."""
