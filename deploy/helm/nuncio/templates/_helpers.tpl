{{- define "nuncio.name" -}}
{{- if contains "nuncio" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-nuncio" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "nuncio.selector" -}}
app.kubernetes.io/name: nuncio
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nuncio.labels" -}}
{{ include "nuncio.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "nuncio.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "nuncio.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "nuncio.name" .) -}}
{{- end -}}

{{- define "nuncio.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "nuncio.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* Settings that the nodes and the migration share. */ -}}
{{- define "nuncio.env" -}}
- name: NUNCIO_BASE_URL
  value: {{ required "baseUrl is required, such as https://id.example.com" .Values.baseUrl | quote }}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "existingSecret is required: the name of a Secret with DATABASE_URL and NUNCIO_SECRET" .Values.existingSecret }}
      key: DATABASE_URL
- name: NUNCIO_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ .Values.existingSecret }}
      key: NUNCIO_SECRET
- name: NUNCIO_DATABASE_CONNECTIONS
  value: {{ .Values.databaseConnections | quote }}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "nuncio.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.config }}
# One file, not the folder: a ConfigMap's folder has links, behind which 'nuncio' is not found.
- name: config
  mountPath: /app/nuncio.config.ts
  subPath: nuncio.config.ts
  readOnly: true
{{- end }}
{{- end -}}

{{- define "nuncio.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
{{- if .Values.config }}
- name: config
  configMap:
    name: {{ .configName }}
{{- end }}
{{- end -}}
