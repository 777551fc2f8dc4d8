{{/* @GENERATED@ */}}

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
@VARIABLES@
{{- $families := include "isthmus.text" .Values.families }}
{{- if ne $families "IPv4" }}
{{- $_ := set $data "ISTHMUS_CLUSTER_FAMILIES" $families }}
{{- end }}
{{- if contains "IPv6" $families }}
{{- if not .Values.dns.listen }}
{{- $_ := set $data "ISTHMUS_DNS_LISTEN" "@DNS_LISTEN@" }}
{{- end }}
{{- if .Values.components.routes }}
{{- $_ := set $data "ISTHMUS_PROXY_LISTEN" "@PROXY_LISTEN@" }}
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
{{- $letters := $hash | trunc @HASH_LENGTH@ | replace "0" "g" | replace "1" "h" | replace "3" "k" }}
{{- printf "isthmus-cluster-%s" ($letters | replace "a" "m" | replace "e" "t") }}
{{- end }}
