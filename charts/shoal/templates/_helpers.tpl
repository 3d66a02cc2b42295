{{- define "shoal.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "shoal.operator" -}}
{{ include "shoal.name" . }}-operator
{{- end }}

{{- define "shoal.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "shoal.operator" .) }}{{ else }}{{ required "serviceAccount.name is required when serviceAccount.create is false" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "shoal.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "shoal.activator" -}}
{{ include "shoal.name" . }}-activator
{{- end }}

{{- define "shoal.activatorChecks" -}}
{{- range .env }}
{{- if and (hasPrefix "SHOAL_" .name) (not (regexMatch "^SHOAL_(ACTIVATOR|LOG)_" .name)) }}
{{- fail (printf "activator.env: %s is not a setting of the activator. Its settings begin with SHOAL_ACTIVATOR_ or SHOAL_LOG_." .name) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "shoal.activatorSelectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: activator
{{- end }}

{{- define "shoal.activatorLabels" -}}
{{ include "shoal.activatorSelectorLabels" . }}
{{ include "shoal.commonLabels" . }}
{{- end }}

{{- define "shoal.labels" -}}
{{ include "shoal.selectorLabels" . }}
{{ include "shoal.commonLabels" . }}
{{- end }}

{{- /* Labels of objects that Prometheus' operator and Grafana's sidecar select. Call with (dict "root" . "labels" additional labels) */ -}}
{{- define "shoal.monitoringLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{ include "shoal.commonLabels" .root }}
{{- with .labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "shoal.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Call with (dict "name" "proxy" "root" .) */ -}}
{{- define "shoal.image" -}}
{{- $images := .root.Values.images }}
{{- $image := index $images .name }}
{{- if not (or $image.repository $images.registry) }}
{{- fail (printf "images.registry is not set, and no registry has the images of this chart. Build and push them (make images REGISTRY=registry.example.com), then install with --set images.registry=registry.example.com/shoal. The missing image is %s; images.%s.repository sets it alone." .name .name) }}
{{- end }}
{{- $repository := $image.repository | default (printf "%s/%s" $images.registry .name) }}
{{- if $image.digest }}{{ $repository }}@{{ $image.digest }}{{ else }}{{ $repository }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* The Lease whose renewals the watches receive: a separate one where the operator's namespace is not watched. */ -}}
{{- define "shoal.heartbeat" -}}
shoal-operator{{ if and .Values.watchNamespaces (not (has .Release.Namespace .Values.watchNamespaces)) }}-heartbeat{{ end }}
{{- end }}

{{- /* The operator's permissions in a namespace that it serves. */ -}}
{{- define "shoal.rules" -}}
- apiGroups: [serving.shoal.dev]
  resources: [inferenceservices, inferencegraphs, batchinferences]
  verbs: [get, list, watch]
- apiGroups: [serving.shoal.dev]
  resources:
    - inferenceservices/status
    - inferenceservices/scale
    - inferencegraphs/status
    - inferencegraphs/scale
    - batchinferences/status
  verbs: [patch]
# Owner references with blockOwnerDeletion require it if OwnerReferencesPermissionEnforcement is enabled.
- apiGroups: [serving.shoal.dev]
  resources: [inferenceservices/finalizers, inferencegraphs/finalizers, batchinferences/finalizers]
  verbs: [update]
# OwnerReferencesPermissionEnforcement (OpenShift) also requires delete to adopt an object whose owner reference was lost.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
# The Job of a BatchInference. The garbage collector deletes it with its owner.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [ray.io]
  resources: [rayjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# Kinds that the operator deletes when a change of the spec, or of the value peers, no longer requires them.
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [ingresses, networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, watch, create, patch, delete]
# To set the deletion cost of pods before a scale-down.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
# Endpoints of the services; and the slice of the activator, also to delete it once the activator is disabled.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch, {{ if .Values.activator.enabled }}create, patch, {{ end }}delete]
{{- if .Values.activator.enabled }}
# OpenShift requires this to write addresses of pods into a slice.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices/restricted]
  verbs: [create]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# A Lease's renewals are the heartbeat of the watches.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "shoal.heartbeat" . }}]
  verbs: [list, watch]
{{- end }}

{{- /* "same" if the cluster has the definition of this chart and this release does not own it: Helm would not install over it, and
no change is needed. Empty if it is missing, or owned by this release. Fails if the definition differs, or has no `keep` annotation:
Helm would delete it, with all services, once a release no longer contains it. Without crds.keep the release deletes the definition
when it is uninstalled, so it must own it. Call with (dict "crd" CRD "root" .) */ -}}
{{- define "shoal.othersDefinition" -}}
{{- $name := .crd.metadata.name }}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name }}
{{- $annotations := dig "metadata" "annotations" dict $found }}
{{- $release := get $annotations "meta.helm.sh/release-name" }}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" }}
{{- if and $found .root.Values.crds.keep (or (ne $release .root.Release.Name) (ne $namespace .root.Release.Namespace)) }}
{{- if ne (pick $annotations "serving.shoal.dev/definition" "helm.sh/resource-policy" | toJson) (toJson .crd.metadata.annotations) }}
{{- fail (printf "the CustomResourceDefinition %s in this cluster is not the one of this version of Shoal, and %s. Apply the file of this version, then install again: kubectl apply --server-side --force-conflicts --filename crds/" $name (ternary (printf "belongs to the Helm release %s in namespace %s" $release $namespace) "belongs to no Helm release" (ne $release ""))) }}
{{- end }}same
{{- end }}
{{- end }}

{{- /* Scheduling of the chart's pods: replicas prefer different nodes. Call with (dict "root" . "labels" the pods' selector) */ -}}
{{- define "shoal.scheduling" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" (fromYaml .labels)) }}
{{- $apart := list (dict "weight" 100 "podAffinityTerm" $term) }}
{{- $apart = dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $apart) }}
{{- $given := .root.Values.affinity }}
affinity: {{- ternary $given (merge $apart $given) (hasKey $given "podAntiAffinity") | toYaml | nindent 2 }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Namespaces with access to the admin ports: the operator's, and those that may read metrics. */ -}}
{{- define "shoal.metricsReaders" -}}
- namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{- prepend .Values.metricsNamespaces .Release.Namespace | uniq | toYaml | nindent 10 }}
{{- end }}

{{- /* The services' pods. */ -}}
{{- define "shoal.servicesPods" -}}
- namespaceSelector:
    {{- if .Values.watchNamespaces }}
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{- .Values.watchNamespaces | toYaml | nindent 10 }}
    {{- else }} {}
    {{- end }}
  podSelector:
    matchLabels: {app.kubernetes.io/managed-by: shoal-operator}
{{- end }}

{{- /* The cluster's DNS. OpenShift's listens at 5353. */ -}}
{{- define "shoal.dns" -}}
- ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
    - {protocol: UDP, port: 5353}
    - {protocol: TCP, port: 5353}
{{- end }}

{{- define "shoal.testLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end }}

{{- /* Objects that exist only during the test. */ -}}
{{- define "shoal.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end }}
