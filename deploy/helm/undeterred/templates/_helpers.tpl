{{- define "undeterred.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Takes (list . "component"), as most of what follows. */}}
{{- define "undeterred.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ default $top.Chart.Name $top.Values.nameOverride }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "undeterred.labels" -}}
{{- $top := index . 0 -}}
{{ include "undeterred.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version }}
{{- end -}}

{{- define "undeterred.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- printf "%s%s%s" .Values.image.repository (ternary "@" ":" (hasPrefix "sha256:" $tag)) $tag -}}
{{- end -}}

{{/* What Pod Security Admission's profile `restricted` asks of a pod. */}}
{{- define "undeterred.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.podSecurityContext.runAsUser | int64 }}
runAsGroup: {{ .Values.podSecurityContext.runAsGroup | int64 }}
fsGroup: {{ .Values.podSecurityContext.fsGroup | int64 }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "undeterred.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The beginning of a pod's spec. A Service named `undeterred` would give pods a variable UNDETERRED_PORT=tcp://…: no links. */}}
{{- define "undeterred.pod" -}}
{{- $top := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index $top.Values $component -}}
enableServiceLinks: false
serviceAccountName: {{ include "undeterred.fullname" $top }}-{{ $component }}
automountServiceAccountToken: {{ eq $component "agent" }}
terminationGracePeriodSeconds: 30
securityContext:
  {{- include "undeterred.podSecurity" $top | nindent 2 }}
{{- with $top.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.replicas }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "undeterred.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* Variables that a component's value `env` has. One that the chart sets as well is left to the user's: the last one counts. */}}
{{- define "undeterred.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- define "undeterred.databaseUrl" -}}
- name: UNDETERRED_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end -}}

{{- define "undeterred.temporal" -}}
- name: UNDETERRED_TEMPORAL_ADDRESS
  value: {{ .Values.temporal.address | quote }}
- name: UNDETERRED_TEMPORAL_NAMESPACE
  value: {{ .Values.temporal.namespace | quote }}
{{- if not (kindIs "invalid" .Values.temporal.tls) }}
- name: UNDETERRED_TEMPORAL_TLS
  value: {{ .Values.temporal.tls | quote }}
{{- end }}
{{- with .Values.temporal.serverName }}
- name: UNDETERRED_TEMPORAL_SERVER_NAME
  value: {{ . | quote }}
{{- end }}
{{- $settings := dict "ca" "CA_FILE" "cert" "CERT_FILE" "key" "KEY_FILE" "apiKey" "API_KEY_FILE" "encryptionKeys" "ENCRYPTION_KEYS_FILE" }}
{{- range $file, $key := .Values.temporal.files }}
{{- if $key }}
{{- if not $.Values.temporal.existingSecret }}
{{- fail (printf "temporal.files.%s: %q, without temporal.existingSecret: expected the name of the Secret that has it" $file $key) }}
{{- end }}
- name: UNDETERRED_TEMPORAL_{{ index $settings $file }}
  value: /etc/undeterred/temporal/{{ $key }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "undeterred.temporalMount" -}}
{{- if .Values.temporal.existingSecret }}
- {name: temporal, mountPath: /etc/undeterred/temporal, readOnly: true}
{{- end }}
{{- end -}}

{{/* A whole Secret, and no single files of it: a key that is renewed there reaches the pod. */}}
{{- define "undeterred.temporalVolume" -}}
{{- with .Values.temporal.existingSecret }}
- name: temporal
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* What API and gateway serve with. The whole Secret: a pair that is renewed there reaches the pod, and is served. */}}
{{- define "undeterred.tls" -}}
{{- if .Values.tls.existingSecret }}
- {name: UNDETERRED_TLS_CERT_FILE, value: /etc/undeterred/tls/tls.crt}
- {name: UNDETERRED_TLS_KEY_FILE, value: /etc/undeterred/tls/tls.key}
{{- end }}
{{- end -}}

{{- define "undeterred.tlsMount" -}}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/undeterred/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "undeterred.tlsVolume" -}}
{{- with .Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* The authority that signed it, without the private key: for the agent, and for its pods by way of it. */}}
{{- define "undeterred.apiCaVolume" -}}
{{- if and .Values.tls.existingSecret .Values.tls.caKey }}
- name: api-ca
  secret:
    secretName: {{ .Values.tls.existingSecret }}
    items: [{key: {{ .Values.tls.caKey }}, path: ca.crt}]
{{- end }}
{{- end -}}

{{- define "undeterred.storage" -}}
{{- if .Values.checkpoints.existingClaim }}
- name: UNDETERRED_STORAGE_PATH
  value: {{ .Values.checkpoints.path | quote }}
{{- end }}
{{- end -}}

{{- define "undeterred.outgoing" -}}
{{- with .Values.outgoing.allowedNetworks }}
- name: UNDETERRED_ALLOWED_NETWORKS
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.outgoing.ownBuckets }}
- name: UNDETERRED_OWN_BUCKETS
  value: {{ join "," . | quote }}
{{- end }}
{{- end -}}

{{- define "undeterred.health" -}}
- {name: UNDETERRED_HEALTH_HOST, value: 0.0.0.0}
- {name: UNDETERRED_HEALTH_PORT, value: "8099"}
{{- end -}}

{{/* Of what is no API. It may wait for the database or Temporal for any time: no start-up probe ends that. */}}
{{- define "undeterred.probes" -}}
readinessProbe:
  httpGet: {path: /health/ready, port: health}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /health/live, port: health}
  initialDelaySeconds: 30
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}

{{- define "undeterred.metrics" -}}
{{- if .Values.metrics.enabled }}
- {name: UNDETERRED_METRICS_HOST, value: 0.0.0.0}
- name: UNDETERRED_METRICS_PORT
  value: {{ .Values.metrics.port | int64 | quote }}
{{- end }}
{{- end -}}

{{- define "undeterred.metricsPort" -}}
{{- if .Values.metrics.enabled }}
- {name: metrics, containerPort: {{ .Values.metrics.port | int64 }}}
{{- end }}
{{- end -}}

{{- define "undeterred.agentToken" -}}
- name: UNDETERRED_AGENT_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ default (include "undeterred.fullname" .) .Values.agentToken.existingSecret }}
      key: {{ ternary .Values.agentToken.key "agent-token" (ne .Values.agentToken.existingSecret "") }}
{{- end -}}

{{/* Where users' pods are: apart from this release, as a pod may read the Secrets of its namespace. */}}
{{- define "undeterred.podsNamespace" -}}
{{- default (printf "%s-pods" (.Release.Namespace | trunc 58 | trimSuffix "-")) .Values.agent.pods.namespace -}}
{{- end -}}

{{- define "undeterred.agentId" -}}
{{- default .Release.Name .Values.agent.id -}}
{{- end -}}

{{- define "undeterred.apiUrl" -}}
{{ ternary "https" "http" (ne .Values.tls.existingSecret "") }}://{{ include "undeterred.fullname" . }}-api.{{ .Release.Namespace }}.svc:{{ .Values.api.service.port | int64 }}
{{- end -}}
