{{- define "replay.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "replay.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "replay.labels" -}}
{{ include "replay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Domain of the servers' names. */}}
{{- define "replay.domain" -}}
{{ include "replay.name" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* Addresses of servers, separated by commas. Takes the root and how many. */}}
{{- define "replay.addressesOf" -}}
{{- range $number := until (int .count) }}
{{- if $number }},{{ end }}{{ include "replay.name" $.root }}-{{ $number }}.{{ include "replay.domain" $.root }}:50051
{{- end }}
{{- end }}

{{- define "replay.addresses" -}}
{{ include "replay.addressesOf" (dict "root" . "count" .Values.replicas) }}
{{- end }}

{{/* Three servers suffice to find the others. So clients stay as they are when servers are added. */}}
{{- define "replay.seeds" -}}
{{ include "replay.addressesOf" (dict "root" . "count" (min 3 .Values.replicas)) }}
{{- end }}

{{/* Whether servers know their callers. */}}
{{- define "replay.protected" -}}
{{- if or .Values.tokens.secret .Values.tls.requireClientCertificates }}true{{ end }}
{{- end }}

{{/* The token of a client. Takes the root and a key of tokens.clientSecret. */}}
{{- define "replay.token" -}}
{{- with .root.Values.tokens.clientSecret }}
- name: REPLAY_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ . }}, key: {{ $.key }}}
{{- end }}
{{- end }}

{{/* How a client connects with TLS. Takes the root and a prefix of variables. */}}
{{- define "replay.tls" -}}
{{- if .root.Values.tls.secret }}
- {name: {{ .prefix }}_TLS_CA, value: /tls/ca.crt}
{{- if .root.Values.tls.requireClientCertificates }}
- {name: {{ .prefix }}_TLS_CERT, value: /tls/tls.crt}
- {name: {{ .prefix }}_TLS_KEY, value: /tls/tls.key}
{{- end }}
{{- end }}
{{- end }}

{{/* Asks the health service. Kubernetes itself cannot do so with TLS. Takes the root, the period in seconds, and how
many failures are one too many. */}}
{{- define "replay.probe" -}}
{{- if .root.Values.tls.secret }}
exec: {command: [python, /opt/replay/healthcheck.py, "localhost:50051"]}
{{- else }}
grpc: {port: 50051}
{{- end }}
timeoutSeconds: 5
periodSeconds: {{ .period }}
failureThreshold: {{ .failures }}
{{- end }}

{{/* Files of certificates, for all pods. */}}
{{- define "replay.tlsMount" -}}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "replay.tlsVolume" -}}
{{- with .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* The file of tokens, for pods that admit others. */}}
{{- define "replay.tokensMount" -}}
{{- if .Values.tokens.secret }}
- {name: tokens, mountPath: /tokens, readOnly: true}
{{- end }}
{{- end }}

{{- define "replay.tokensVolume" -}}
{{- with .Values.tokens.secret }}
- name: tokens
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* The user of the images. Volumes belong to its group. */}}
{{- define "replay.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "replay.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{/* Settings of all pods. */}}
{{- define "replay.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "replay.podSecurity" . | nindent 2 }}
{{- end }}

{{/* Where pods run. Takes the values of a component. */}}
{{- define "replay.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Servers on different nodes. */}}
{{- define "replay.apart" -}}
podAntiAffinity:
  {{- if eq .Values.server.antiAffinity "required" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "replay.selector" . | nindent 10 }}
          app.kubernetes.io/component: server
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "replay.selector" . | nindent 12 }}
            app.kubernetes.io/component: server
  {{- end }}
{{- end }}

{{/* A claim of a volume. Takes the values of a component. */}}
{{- define "replay.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: {storage: {{ .storageSize }}}
{{- end }}

{{/* A size such as 6Gi or 500M, in MiB. */}}
{{- define "replay.mebibytes" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 }}
{{- $units := dict "Ti" 1048576.0 "Gi" 1024.0 "Mi" 1.0 "Ki" 0.0009765625 "T" 953674.3 "G" 953.6743 "M" 0.9536743 "k" 0.00095 "" 0.00000095 }}
{{- mulf $number (get $units (regexFind "[A-Za-z]*$" .)) | floor | int }}
{{- end }}
