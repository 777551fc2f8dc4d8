{{/* Written by tools/chart.py from deploy/; `make chart` writes it again. */}}

{{/* A value as a variable has it: lists and labels with commas. */}}
{{- define "isthmus.text" -}}
{{- if kindIs "slice" . }}{{ join "," . }}
{{- else if kindIs "map" . }}
{{- $pairs := list }}
{{- range $key, $value := . }}{{ $pairs = append $pairs (printf "%s=%s" $key $value) }}{{ end }}
{{- join "," $pairs }}
{{- else if kindIs "string" . }}{{ . }}
{{- else if not (kindIs "invalid" .) }}{{ toJson . }}
{{- end }}
{{- end }}

{{/* Variables of all processes, as JSON. */}}
{{- define "isthmus.variables" -}}
{{- if ne .Release.Namespace "isthmus-system" }}
{{- fail (printf "Isthmus runs in the namespace isthmus-system, not in '%s': add --namespace isthmus-system" .Release.Namespace) }}
{{- end }}
{{- $data := dict }}
{{- $_ := set $data "ISTHMUS_CLUSTER_NAME" (include "isthmus.text" .Values.cluster.name) }}
{{- $_ := set $data "ISTHMUS_CLUSTER_ID" (include "isthmus.text" .Values.cluster.id) }}
{{- $_ := set $data "ISTHMUS_CLUSTER_POD_RANGES" (include "isthmus.text" .Values.cluster.podRanges) }}
{{- $_ := set $data "ISTHMUS_CLUSTER_SERVICE_RANGES" (include "isthmus.text" .Values.cluster.serviceRanges) }}
{{- $_ := set $data "ISTHMUS_CLUSTER_NODE_RANGES" (include "isthmus.text" .Values.cluster.nodeRanges) }}
{{- $_ := set $data "ISTHMUS_CLUSTER_REGION" (include "isthmus.text" .Values.cluster.region) }}
{{- $_ := set $data "ISTHMUS_CLUSTER_ZONE" (include "isthmus.text" .Values.cluster.zone) }}
{{- $_ := set $data "ISTHMUS_CLUSTER_LABELS" (include "isthmus.text" .Values.cluster.labels) }}
{{- if or .Values.cluster.network .Values.components.islands }}
{{- $_ := set $data "ISTHMUS_CLUSTER_NETWORK" (include "isthmus.text" .Values.cluster.network) }}
{{- end }}
{{- if or .Values.cluster.gateways .Values.components.islands }}
{{- $_ := set $data "ISTHMUS_CLUSTER_GATEWAYS" (include "isthmus.text" .Values.cluster.gateways) }}
{{- end }}
{{- $_ := set $data "ISTHMUS_DNS_CLUSTER_DNS" (include "isthmus.text" .Values.dns.clusterDns) }}
{{- if .Values.dns.listen }}
{{- $_ := set $data "ISTHMUS_DNS_LISTEN" (include "isthmus.text" .Values.dns.listen) }}
{{- end }}
{{- $families := include "isthmus.text" .Values.families }}
{{- if ne $families "IPv4" }}
{{- $_ := set $data "ISTHMUS_CLUSTER_FAMILIES" $families }}
{{- end }}
{{- if contains "IPv6" $families }}
{{- if not .Values.dns.listen }}
{{- $_ := set $data "ISTHMUS_DNS_LISTEN" "169.254.7.1:53,[fd00:169:254:7::1]:53" }}
{{- end }}
{{- if .Values.components.routes }}
{{- $_ := set $data "ISTHMUS_PROXY_LISTEN" "169.254.7.1,fd00:169:254:7::1" }}
{{- end }}
{{- end }}
{{- range $section, $fields := .Values.settings }}
{{- range $field, $value := $fields }}
{{- $_ := set $data (printf "ISTHMUS_%s_%s" $section $field | upper) (include "isthmus.text" $value) }}
{{- end }}
{{- end }}
{{- toJson $data }}
{{- end }}

{{/* Its ConfigMap's name ends with a hash of the variables, as kustomize's does: pods are replaced when one changes. */}}
{{- define "isthmus.variablesName" -}}
{{- $hash := dict "data" (include "isthmus.variables" . | fromJson) "kind" "ConfigMap" "name" "" | toJson | sha256sum }}
{{- $letters := $hash | trunc 10 | replace "0" "g" | replace "1" "h" | replace "3" "k" }}
{{- printf "isthmus-cluster-%s" ($letters | replace "a" "m" | replace "e" "t") }}
{{- end }}
