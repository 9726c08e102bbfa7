{{- define "pointsman.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "pointsman.labels" -}}
app.kubernetes.io/name: pointsman
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pointsman.kubeconfig" -}}
{{- if and .Values.kubeconfig.secret .Values.kubeconfig.hostPath -}}
{{- fail "kubeconfig: give secret or hostPath, not both" -}}
{{- end -}}
{{- if .Values.kubeconfig.secret -}}
/etc/pointsman-kubeconfig/{{ .Values.kubeconfig.key }}
{{- else if .Values.kubeconfig.hostPath -}}
/etc/pointsman-kubeconfig/{{ base .Values.kubeconfig.hostPath }}
{{- end -}}
{{- end -}}

{{- define "pointsman.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if and (not $config.clusterCIDR) (has ($config.detectLocalMode | default "") (list "" "ClusterCIDR")) -}}
{{- fail "config.clusterCIDR: give the pod network, such as 10.244.0.0/16 (with kubeadm, podSubnet in `kubectl -n kube-system get configmap kubeadm-config -o yaml`), or another config.detectLocalMode" -}}
{{- end -}}
{{- with include "pointsman.kubeconfig" . -}}
{{- $connection := merge (dict "kubeconfig" .) (get $config "clientConnection" | default dict) -}}
{{- $_ := set $config "clientConnection" $connection -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{- define "pointsman.master" -}}
{{- with .Values.apiServer -}}
{{- if .host -}}
--master=https://{{ if contains ":" .host }}[{{ .host }}]{{ else }}{{ .host }}{{ end }}:{{ int64 .port }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Where the kubelet finds the health server; empty when it is switched off. */ -}}
{{- define "pointsman.health" -}}
{{- with .Values.config.healthzBindAddress -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" -}}
host: {{ has $host (list "" "0.0.0.0" "::") | ternary "127.0.0.1" $host | quote }}
port: {{ regexFind "[0-9]+$" . }}
{{- if $.Values.secureServing.health }}
scheme: HTTPS
{{- end }}
{{- end -}}
{{- end -}}
