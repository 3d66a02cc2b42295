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

{{- define "shoal.waitingRoom" -}}
{{ include "shoal.name" . }}-waiting-room
{{- end }}

{{- define "shoal.waitingRoomChecks" -}}
{{- range .env }}
{{- if and (hasPrefix "SHOAL_" .name) (not (regexMatch "^SHOAL_(WAITING|LOG)_" .name)) }}
{{- fail (printf "waitingRoom.env: %s is no setting of the waiting room, whose names begin with SHOAL_WAITING_ or SHOAL_LOG_" .name) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "shoal.waitingRoomSelectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: waiting-room
{{- end }}

{{- define "shoal.waitingRoomLabels" -}}
{{ include "shoal.waitingRoomSelectorLabels" . }}
{{ include "shoal.commonLabels" . }}
{{- end }}

{{- define "shoal.labels" -}}
{{ include "shoal.selectorLabels" . }}
{{ include "shoal.commonLabels" . }}
{{- end }}

{{- define "shoal.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Call with (dict "image" .Values.images.proxy "root" .) */ -}}
{{- define "shoal.image" -}}
{{- if .image.digest }}{{ .image.repository }}@{{ .image.digest }}{{ else }}{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* What the operator does in a namespace that it serves, and nothing else. */ -}}
{{- define "shoal.rules" -}}
- apiGroups: [serving.shoal.dev]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [serving.shoal.dev]
  resources: [inferenceservices/status, inferenceservices/scale]
  verbs: [patch]
# Where OwnerReferencesPermissionEnforcement is on, an owner reference that blocks needs this.
- apiGroups: [serving.shoal.dev]
  resources: [inferenceservices/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# Kinds that a change of the spec, or of these values (siblings), can make superfluous.
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
# To say which pods a scale-down costs least.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
# Whether the services lead to pods; and the slice that leads to the waiting room, or did before there was none.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch, {{ if .Values.waitingRoom.enabled }}create, patch, {{ end }}delete]
{{- if .Values.waitingRoom.enabled }}
# OpenShift asks for this of who writes addresses of pods into a slice.
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
  resourceNames: [shoal-operator, shoal-operator-heartbeat]
  verbs: [list, watch]
{{- end }}
