#!/usr/bin/env bash
# deploy/kubernetes: the manifests and the Helm chart say what they should; Helm takes the chart and makes the same objects of it,
# and kustomize what deploy/clusters has for kubeadm, kops and k3s; and with a real control plane (scripts/kubernetes): the API server takes them all, the service account may do what flannel
# may and nothing else, make-kubeconfig's tokens work, end and are revoked, and flannel's DaemonSet stays off migrated nodes.
#
# kubernetes_deploy.sh PART: manifests, helm or real
# needs: scripts/kubernetes
# case: manifests
# full: helm
# full: real
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/apiserver.sh
. "$TOOLS/apiserver.sh"
# shellcheck source=scripts/tests.d/tools/helm.sh
. "$TOOLS/helm.sh"

# flannel's DaemonSet, as far as it says where its pods run.
daemonset() {
    cat <<'TEXT'
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-flannel-ds, namespace: kube-flannel, labels: {app: flannel}}
spec:
  selector: {matchLabels: {app: flannel}}
  template:
    metadata: {labels: {app: flannel}}
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]
      tolerations: [{operator: Exists}]
      containers: [{name: kube-flannel, image: example.org/flannel, command: [/opt/bin/flanneld]}]
TEXT
}

# The control plane of these tests is of 1.20.
BEFORE_SURGE=$DEPLOY/../clusters/before-1.22

TERMS='jsonpath={range .spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[*].matchExpressions[*]}{.key} {.operator} {.values[*]}{"\n"}{end}'

manifests() {
    equal "the manifests" "as they should be" \
        "$("$YAML_PYTHON" "$TOOLS/deploy_manifests.py" "$DEPLOY/rbac.yaml" "$DEPLOY/flannel-affinity.yaml" 2>&1)"
    daemonset >"$SCRATCH/daemonset.yaml"
    equal "flannel's DaemonSet, patched" $'kubernetes.io/os In linux\ntartan.io/dataplane NotIn tartan' \
        "$(kubectl patch --local -f "$SCRATCH/daemonset.yaml" --patch "$(cat "$DEPLOY/flannel-affinity.yaml")" -o "$TERMS")"
    workload
    test_server
    refused_by_option
}

# What `kubectl apply -k` would apply, and what the Helm chart says by a renderer of ours.
workload() {
    kubectl_of_today kustomize "$DEPLOY" >"$SCRATCH/workload.yaml"
    kubectl_of_today kustomize "$DEPLOY/remove" >"$SCRATCH/remove.yaml"
    equal "the workload" "as they should be" \
        "$(judged "$DEPLOY" "$SCRATCH/workload.yaml" "$SCRATCH/remove.yaml" "$(version)" 2>&1)"
    kubectl_of_today kustomize "$BEFORE_SURGE" >"$SCRATCH/before-surge.yaml"
    equal "what Kubernetes before 1.22 gets instead" $'< maxSurge: 1\n< maxUnavailable: 0\n< minReadySeconds: 5\n> maxUnavailable: 1\n> minReadySeconds: 15' \
        "$(diff "$SCRATCH/workload.yaml" "$SCRATCH/before-surge.yaml" | sed -nE 's/^([<>]) +/\1 /p' | LC_ALL=C sort)"
}

judged() {
    "$YAML_PYTHON" "$TOOLS/workload_manifests.py" "$@"
}

# overlay NAME NETWORK BIN CONF: what deploy/clusters has for it, below a directory of one's own that names an image.
overlay() {
    local own=$SCRATCH/own-$1 what=("$2" 'healthz = "127.0.0.1:18473"' REGISTRY/tartan:1 "$3" "$4" tartan-system)
    mkdir -p "$own"
    {
        echo "resources: [$(realpath --relative-to "$own" "$DEPLOY/../clusters/$1")]"
        echo 'images: [{name: localhost/tartan, newName: REGISTRY/tartan, newTag: "1"}]'
    } >"$own/kustomization.yaml"
    kubectl_of_today kustomize "$own" >"$SCRATCH/$1.yaml" || fail "kustomize does not take deploy/clusters/$1"
    equal "deploy/clusters/$1" "$(jq -cn '$ARGS.positional' --args "${what[@]}")" "$(values_arrived "$SCRATCH/$1.yaml")"
    # Nothing else differs from the manifests for every cluster, but the order of what kustomize merges by name.
    kubectl_of_today kustomize "$DEPLOY" >"$SCRATCH/every.yaml"
    equal "lines of deploy/clusters/$1 that differ" '' "$(diff <(sort "$SCRATCH/every.yaml") <(sort "$SCRATCH/$1.yaml") | grep '^[<>]' |
        grep -vE '"Network": |image: |path: (/opt/cni/bin|/etc/cni/net.d|/var/lib/rancher/k3s/[a-z/.]*)$')"
}

clusters() {
    overlay kubeadm 10.244.0.0/16 /opt/cni/bin /etc/cni/net.d
    overlay kops 100.96.0.0/11 /opt/cni/bin /etc/cni/net.d
    overlay k3s 10.42.0.0/16 /var/lib/rancher/k3s/data/cni /var/lib/rancher/k3s/agent/etc/cni/net.d
    equal "directories of the removal in k3s" $'/var/lib/rancher/k3s/agent/etc/cni/net.d\n/var/lib/rancher/k3s/data/cni' \
        "$(kubectl_of_today kustomize "$DEPLOY/../clusters/k3s-remove" | sed -nE 's/^ *path: (.*cni.*|.*bin)$/\1/p' | sort)"
}

# Helm itself, with the default values and with others.
by_helm() {
    get_helm
    say "Helm $(helm version --template '{{.Version}}')"
    helm lint --strict "$DEPLOY/chart" >"$SCRATCH/lint" || fail "helm lint: $(cat "$SCRATCH/lint")"
    helm template tartan "$DEPLOY/chart" --namespace tartan-system >"$SCRATCH/template.yaml" || die "helm template ended with $?"
    equal "Helm's objects" "as they should be" "$(judged helm "$DEPLOY" "$SCRATCH/template.yaml" 2>&1)"
    # The commands of docs/kubernetes.md.
    helm template tartan "$DEPLOY/chart" --namespace elsewhere --set image.repository=REGISTRY/tartan --set network=10.42.0.0/16 \
        --set cni.binDir=/var/lib/rancher/k3s/data/cni --set cni.confDir=/var/lib/rancher/k3s/agent/etc/cni/net.d \
        --set-string 'extraConfig=workers = 2' >"$SCRATCH/other.yaml" || fail "helm template with values ended with $?"
    equal "minReadySeconds where no value says" 5 "$(seconds_ready "$SCRATCH/other.yaml")"
    equal "what the values have changed" '["10.42.0.0/16","workers = 2","REGISTRY/tartan:0.1.0","/var/lib/rancher/k3s/data/cni","/var/lib/rancher/k3s/agent/etc/cni/net.d","elsewhere"]' \
        "$(values_arrived "$SCRATCH/other.yaml")"
    net_conf >"$SCRATCH/net-conf.json"
    helm template tartan "$DEPLOY/chart" --namespace tartan-system --set-file netConf="$SCRATCH/net-conf.json" \
        --set 'rollingUpdate=maxUnavailable: 1' --set minReadySeconds=15 >"$SCRATCH/before-surge.yaml" ||
        fail "helm template for Kubernetes before 1.22 ended with $?"
    equal "the net-conf that is given whole" "$(net_conf)" "$(net_conf_of "$SCRATCH/before-surge.yaml")"
    equal "minReadySeconds by its value" 15 "$(seconds_ready "$SCRATCH/before-surge.yaml")"
    clusters
}

# With keys that no value of its own has.
net_conf() {
    cat <<'TEXT'
{
  "EnableIPv6": true,
  "Network": "10.42.0.0/16",
  "IPv6Network": "2001:db8:42::/56",
  "Backend": {
    "Type": "vxlan",
    "VNI": 4096,
    "Port": 4789,
    "MTU": 1400
  }
}
TEXT
}

net_conf_of() {
    "$YAML_PYTHON" -c '
import sys, yaml
print(next(one for one in yaml.safe_load_all(open(sys.argv[1])) if one["kind"] == "ConfigMap")["data"]["net-conf.json"])' "$1"
}

seconds_ready() {
    sed -nE 's/^ *minReadySeconds: (.*)/\1/p' "$1"
}

values_arrived() {
    "$YAML_PYTHON" -c '
import json, sys, yaml
objects = {one["kind"]: one for one in yaml.safe_load_all(open(sys.argv[1])) if one}
data, daemonset = objects["ConfigMap"]["data"], objects["DaemonSet"]
spec = daemonset["spec"]["template"]["spec"]
paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
print(json.dumps([json.loads(data["net-conf.json"])["Network"], data["tartan.toml"].strip().split("\n")[-1], spec["containers"][0]["image"],
                  paths["cni-bin"], paths["cni-conf"], daemonset["metadata"]["namespace"]], separators=(",", ":")))' "$1"
}

# Of the workspace, which the manifests name their image by.
version() {
    sed -nE 's/^version = "(.*)"/\1/p' "$SCRIPTS/../Cargo.toml" | head -n 1
}

# What it is told wrongly, and what it cannot do, it says.
refused_by_option() {
    local words
    for words in "--duration 60" "--duration x" "--output" "--other"; do
        # shellcheck disable=SC2086
        equal "make-kubeconfig $words ends with" 2 "$("$DEPLOY/make-kubeconfig" $words >/dev/null 2>&1 && echo 0 || echo $?)"
    done
    contains "make-kubeconfig without the service account" "is rbac.yaml applied" \
        "$(KUBECONFIG=$SCRATCH/kubeconfig "$DEPLOY/make-kubeconfig" 2>&1)"
}

contains() {
    case $3 in
    *"$2"*) say "$1: says $2" ;;
    *) fail "$1: expected $2, found $3" ;;
    esac
}

# Every verb of every resource that is near flannel's.
rights() {
    local verb resource
    for resource in pods nodes nodes/status nodes/proxy secrets configmaps serviceaccounts/token; do
        for verb in get list watch create update patch delete; do
            [ "$(real kubectl auth can-i "$verb" "${resource%%/*}" --subresource "$(subresource "$resource")" \
                --as "$ACCOUNT" --all-namespaces 2>/dev/null)" = yes ] && echo "$verb $resource"
        done
    done
    true
}

subresource() {
    case $1 in
    */*) echo "${1#*/}" ;;
    esac
}

# try FILE VERB...: the exit code and what kubectl says with a kubeconfig.
try() {
    timeout 20 ip netns exec "$PREFIX-control" kubectl --kubeconfig "$1" --request-timeout 10s "${@:2}" 2>&1
}

# The answer to a token that is no longer one: a cached one may be taken for some seconds more.
unauthorized() {
    [[ $(try "$1" get nodes) == *Unauthorized* ]]
}

tokens() {
    local ends
    real "$DEPLOY/make-kubeconfig" --duration 3600 --output "$SCRATCH/account" 2>"$SCRATCH/said"
    cat "$SCRATCH/said"
    ends=$(date -d "$(sed -nE 's/.*valid until (.*)/\1/p' "$SCRATCH/said")" +%s)
    at_most "seconds that the token is valid" 3600 $((ends - $(date +%s)))
    equal "the file's mode" 600 "$(stat -c %a "$SCRATCH/account")"
    equal "nodes, with it" node/node1 "$(try "$SCRATCH/account" get nodes -o name)"
    contains "a Secret, with it" Forbidden "$(try "$SCRATCH/account" -n kube-system get secrets)"
    contains "a label of a node, with it" Forbidden "$(try "$SCRATCH/account" label node node1 x=y)"
    real "$DEPLOY/make-kubeconfig" --long-lived >"$SCRATCH/long" 2>"$SCRATCH/said"
    cat "$SCRATCH/said"
    equal "nodes, with the long-lived token" node/node1 "$(try "$SCRATCH/long" get nodes -o name)"
    real kubectl -n tartan-system delete secret tartan-token >/dev/null
    until_true 30 "the long-lived token is revoked" unauthorized "$SCRATCH/long" && say "the long-lived token is revoked"
    equal "nodes, with the other one" node/node1 "$(try "$SCRATCH/account" get nodes -o name)"
    real "$DEPLOY/make-kubeconfig" --server https://127.0.0.1:6443 2>/dev/null >"$SCRATCH/other"
    contains "another address of the server" "server: https://127.0.0.1:6443" "$(cat "$SCRATCH/other")"
}

# Which nodes flannel's pods are made for: the controller asks the same as the scheduler.
affinity() {
    real kubectl create namespace kube-flannel >/dev/null
    # As its kubelet would, which does not run here.
    real kubectl label node node1 kubernetes.io/os=linux >/dev/null
    daemonset | real kubectl apply -f - >/dev/null
    until_true 20 "flannel is to run on node1" daemonset_wants 1 && say "flannel is to run on node1"
    real kubectl -n kube-flannel patch daemonset kube-flannel-ds --patch-file "$DEPLOY/flannel-affinity.yaml" >/dev/null
    until_true 20 "flannel is to run on node1 still" daemonset_wants 1 && say "flannel is to run on node1 still"
    real kubectl label node node1 tartan.io/dataplane=tartan >/dev/null
    until_true 20 "flannel is not to run on node1" daemonset_wants 0 && say "flannel is not to run on node1 once it is labelled"
    real kubectl label node node1 tartan.io/dataplane- >/dev/null
    until_true 20 "flannel is to run on node1 again" daemonset_wants 1 && say "flannel is to run on node1 again"
}

# Nodes it is to run on, as of its present template.
daemonset_wants() {
    [ "$(real kubectl -n kube-flannel get daemonset kube-flannel-ds -o \
        'jsonpath={.status.desiredNumberScheduled} {.metadata.generation}')" = \
        "$1 $(real kubectl -n kube-flannel get daemonset kube-flannel-ds -o 'jsonpath={.status.observedGeneration}')" ]
}

# How many objects of standard input the API server would take.
taken() {
    real kubectl apply --dry-run=server -f - | grep -cE ' (created|configured|unchanged) \(server dry run\)'
}

in_cluster() {
    local directory
    real_server
    # The rights of the cluster's own tests are out of the way.
    real kubectl delete clusterrolebinding tartan-lab >/dev/null
    real kubectl apply -f "$DEPLOY/rbac.yaml"
    equal "a second time, what changes" 4 "$(real kubectl apply --dry-run=server -f "$DEPLOY/rbac.yaml" | grep -c unchanged)"
    equal "the account's rights" $'get pods\nget nodes\nlist nodes\nwatch nodes\npatch nodes/status' "$(rights)"
    equal "objects that the API server takes of the workload" 6 "$(kubectl_of_today kustomize "$BEFORE_SURGE" | taken)"
    for directory in "$DEPLOY/../clusters"/{kubeadm,kops,k3s}; do
        # This release knows no maxSurge: that of before-1.22 in its place.
        equal "of $(basename "$directory")" 6 "$(kubectl_of_today kustomize "$directory" |
            sed -e '/^ *maxSurge: 1$/d' -e 's/^\( *maxUnavailable:\) 0$/\1 1/' | taken)"
    done
    equal "of the removal" 2 "$(kubectl_of_today kustomize "$DEPLOY/remove" | taken)"
    equal "of the removal from k3s" 2 "$(kubectl_of_today kustomize "$DEPLOY/../clusters/k3s-remove" | taken)"
    equal "of the chart" 5 "$(judged chart "$DEPLOY" 'rollingUpdate=maxUnavailable: 1' | taken)"
    tokens
    affinity
    real kubectl delete -f "$DEPLOY/rbac.yaml" >/dev/null
    until_true 30 "the account's tokens are revoked" unauthorized "$SCRATCH/account" && say "the account's tokens are revoked"
}

case ${1:-} in
manifests) manifests ;;
helm) by_helm ;;
real) in_cluster ;;
*) die "manifests, helm or real?" ;;
esac
