#!/usr/bin/env bash
# deploy/kubernetes: the manifests and the Helm chart say what they should and make the same objects, values change what
# docs/kubernetes.md says, and with --full kustomize makes what deploy/clusters has for kubeadm, kops and k3s. With a
# real control plane (scripts/kubernetes): the API server takes them all, the service account may do what flannel may
# and nothing else, make-kubeconfig's tokens work, end and are revoked, and the tests of the registry hold.
#
# kubernetes_deploy.sh PART: manifests, real or registry
# needs: scripts/kubernetes
# needs: network: Helm
# case: manifests
# full: real
# full: registry
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/apiserver.sh"
. "$TOOLS/helm.sh"

JUDGE=("$YAML_PYTHON" "$TOOLS/deploy_manifests.py")
# The control plane of these tests is of 1.20.
BEFORE_SURGE=(--set 'rollingUpdate=maxUnavailable: 1' --set minReadySeconds=15)

manifests() {
    local words
    kustomize kubernetes >"$SCRATCH/every.yaml"
    kustomize kubernetes/remove >"$SCRATCH/remove.yaml"
    kustomize clusters/before-1.22 >"$SCRATCH/before-1.22.yaml"
    "$HELM/helm" lint --strict "$DEPLOY/chart" >"$SCRATCH/lint" || fail "helm lint: $(cat "$SCRATCH/lint")"
    chart chart tartan-system
    equal manifests "as they should be" "$("${JUDGE[@]}" manifests "$DEPLOY" "$SCRATCH"/{every,remove,chart}.yaml \
        "$(sed -nE '0,/^version/s/^version = "(.*)"/\1/p' "$SCRIPTS/../Cargo.toml")" 2>&1)"
    equal "what Kubernetes before 1.22 gets instead" \
        '< maxSurge: 1;< maxUnavailable: 0;< minReadySeconds: 5;> maxUnavailable: 1;> minReadySeconds: 15' \
        "$(diff "$SCRATCH"/{every,before-1.22}.yaml | sed -nE 's/^([<>]) +/\1 /p' | LC_ALL=C sort | paste -sd ';')"
    equal "terms of flannel's DaemonSet, patched" 'kubernetes.io/os In linux;tartan.io/dataplane NotIn tartan' \
        "$(flannel | "$HELM/kubectl" patch --local -f - --patch-file "$DEPLOY/flannel-affinity.yaml" -o json |
            jq -r '[.. | .matchExpressions? // empty | .[] | "\(.key) \(.operator) \(.values[0])"] | join(";")')"
    by_values
    test_server
    for words in "--duration 60" "--duration x" "--output" "--other"; do
        # shellcheck disable=SC2086
        equal "make-kubeconfig $words" 2 "$("$DEPLOY/make-kubeconfig" $words >/dev/null 2>&1 && echo 0 || echo $?)"
    done
    KUBECONFIG=$SCRATCH/kubeconfig "$DEPLOY/make-kubeconfig" >"$SCRATCH/said" 2>&1 || true
    equal "make-kubeconfig without the account says what to do" 1 "$(grep -c "is rbac.yaml applied" "$SCRATCH/said")"
}

# flannel's DaemonSet, as far as it says where its pods run.
flannel() {
    jq -n '{key: "kubernetes.io/os", operator: "In", values: ["linux"]} as $linux
        | {apiVersion: "apps/v1", kind: "DaemonSet", metadata: {name: "kube-flannel-ds"}}
        | .spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution
            .nodeSelectorTerms = [{matchExpressions: [$linux]}]'
}

# kustomize DIRECTORY: below deploy/, or absolute.
kustomize() {
    (cd "$DEPLOY/.." && "$HELM/kubectl" kustomize "$1")
}

# chart NAME NAMESPACE OPTION...: what Helm makes of it.
chart() {
    "$HELM/helm" template tartan "$DEPLOY/chart" --namespace "${@:2}" >"$SCRATCH/$1.yaml" || fail "no chart: ${*:2}"
}

# are NAME VALUE...: what deploy_manifests.py finds of such.
are() {
    equal "values of $1" "${*:2}" "$("${JUDGE[@]}" values "$SCRATCH/$1.yaml")"
}

# With values of Helm's, and with --full with directories of one's own, as the page has them.
by_values() {
    local usual="/opt/cni/bin /etc/cni/net.d" k3s=/var/lib/rancher/k3s
    k3s="$k3s/data/cni $k3s/agent/etc/cni/net.d"
    chart other elsewhere --set image.repository=REGISTRY/tartan --set network=10.42.0.0/16 --set backend=udp \
        --set cni.binDir="${k3s% *}" --set cni.confDir="${k3s#* }" --set healthPort=18500 \
        --set-string extraConfig=$'metrics = "0.0.0.0:9476"\nworkers = 2'
    are other 10.42.0.0/16 udp REGISTRY/tartan:0.1.0 "$k3s" elsewhere 5 18500
    equal "tartan.toml" 'registry = "kubernetes";healthz = "127.0.0.1:18500";metrics = "0.0.0.0:9476";workers = 2' \
        "$(sed -n '/^  tartan.toml/,/^---/s/^    \(.\)/\1/p' "$SCRATCH/other.yaml" | paste -sd ';')"
    printf '{\n  "Network": "10.2.0.0/16",\n  "Backend": {"Type": "vxlan", "VNI": 7}\n}\n' >"$SCRATCH/net-conf.json"
    chart given tartan-system --set-file netConf="$SCRATCH/net-conf.json" "${BEFORE_SURGE[@]}"
    equal "the net-conf that is given whole" "$(cat "$SCRATCH/net-conf.json")" \
        "$(sed -n '/^  net-conf.json/,/^  tartan.toml/s/^    //p' "$SCRATCH/given.yaml")"
    are given 10.2.0.0/16 vxlan localhost/tartan:0.1.0 "$usual" tartan-system 15 18473
    [ -n "${FULL:-}" ] || return 0
    overlay kubeadm 10.244.0.0/16 "$usual"
    overlay kops 100.96.0.0/11 "$usual"
    overlay k3s 10.42.0.0/16 "$k3s"
    equal "directories of the removal in k3s" "${k3s#* } ${k3s% *}" \
        "$(kustomize clusters/k3s-remove | sed -nE 's/^ *path: (.*cni.*|.*bin)$/\1/p' | sort | paste -sd ' ')"
}

# overlay NAME NETWORK DIRECTORIES: what deploy/clusters has for it, below a directory of one's own that names an image.
overlay() {
    local own=$SCRATCH/own-$1
    mkdir -p "$own"
    {
        echo "resources: [$(realpath --relative-to "$own" "$DEPLOY/../clusters/$1")]"
        echo 'images: [{name: localhost/tartan, newName: REGISTRY/tartan, newTag: "1"}]'
    } >"$own/kustomization.yaml"
    kustomize "$own" >"$SCRATCH/$1.yaml" || fail "kustomize does not take deploy/clusters/$1"
    are "$1" "$2" vxlan REGISTRY/tartan:1 "$3" tartan-system 5 18473
    # Nothing else differs from the manifests for every cluster, but the order of what kustomize merges by name.
    equal "other lines of deploy/clusters/$1" '' "$(diff <(sort "$SCRATCH/every.yaml") <(sort "$SCRATCH/$1.yaml") |
        grep '^[<>]' | grep -vE '"Network": |image: |path: (/opt/cni/bin|/etc/cni/net.d|/var/lib/rancher/[a-z3/.]*)$')"
}

# try FILE VERB...: what kubectl says with a kubeconfig.
try() {
    real timeout 20 kubectl --kubeconfig "$1" --request-timeout 10s "${@:2}" 2>&1
}

# The answer to a token that is no longer one: a cached one may be taken for some seconds more.
unauthorized() {
    [[ $(try "$1" get nodes) == *Unauthorized* ]]
}

tokens() {
    local ends
    real "$DEPLOY/make-kubeconfig" --duration 3600 --output "$SCRATCH/account" 2>"$SCRATCH/said"
    ends=$(date -d "$(sed -nE 's/.*valid until (.*)/\1/p' "$SCRATCH/said")" +%s)
    at_most "seconds that the token is valid" 3600 $((ends - $(date +%s)))
    equal "the file's mode" 600 "$(stat -c %a "$SCRATCH/account")"
    equal "refusals of a Secret, with it" 1 "$(try "$SCRATCH/account" -n kube-system get secrets | grep -c Forbidden)"
    equal "refusals of a label of a node" 1 "$(try "$SCRATCH/account" label node node1 x=y | grep -c Forbidden)"
    real "$DEPLOY/make-kubeconfig" --long-lived >"$SCRATCH/long" 2>/dev/null
    equal "nodes, with the long-lived token" node/node1 "$(try "$SCRATCH/long" get nodes -o name)"
    real kubectl -n tartan-system delete secret tartan-token >/dev/null
    until_true 30 "the long-lived token is revoked" unauthorized "$SCRATCH/long"
    equal "nodes, with the other one" node/node1 "$(try "$SCRATCH/account" get nodes -o name)"
    equal "another address" 1 "$(real "$DEPLOY/make-kubeconfig" --server https://a.example:6443 2>/dev/null |
        grep -c "server: https://a.example:6443$")"
}

# taken DIRECTORY: how many of its objects the API server would take; this release does not know maxSurge.
taken() {
    kustomize "$1" | sed -e '/^ *maxSurge: 1$/d' -e 's/^\( *maxUnavailable:\) 0$/\1 1/' |
        real kubectl apply --dry-run=server -f - | grep -cE ' (created|configured|unchanged) \(server dry run\)'
}

in_cluster() {
    local name
    real_server
    real kubectl apply -f "$DEPLOY/rbac.yaml"
    equal "unchanged if applied again" 4 \
        "$(real kubectl apply --dry-run=server -f "$DEPLOY/rbac.yaml" | grep -c unchanged)"
    equal "the account's rights" '["get nodes","get pods","list nodes","patch nodes/status","watch nodes"]' \
        "$(real kubectl create --as "$ACCOUNT" -o json -f - <<<'{"apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview", "spec": {"namespace": "kube-system"}}' |
            jq -c '[.status.resourceRules[] | select(.apiGroups == [""]) | "\(.verbs[]) \(.resources[])"] | sort')"
    for name in before-1.22 kubeadm kops k3s; do equal "taken of $name" 6 "$(taken "clusters/$name")"; done
    for name in kubernetes/remove clusters/k3s-remove; do equal "taken of $name" 2 "$(taken "$name")"; done
    tokens
    real kubectl delete -f "$DEPLOY/rbac.yaml" >/dev/null
    until_true 30 "the account's tokens are revoked" unauthorized "$SCRATCH/account"
    real "$HELM/helm" install tartan "$DEPLOY/chart" --namespace tartan-system --create-namespace "${BEFORE_SURGE[@]}" \
        >/dev/null || fail "helm install"
    real "$HELM/helm" uninstall tartan --namespace tartan-system >/dev/null || fail "helm uninstall"
}

# The registry `kubernetes` against a real API server: the tests of agent/tests/kubernetes that need no fault of the
# server, with Nodes that they make, change and delete. Daily they run against the testbed's server, by cargo test.
registry() {
    local profile=fast tests
    # The build that the agents are of.
    if [[ ${LAB_BIN:-} == */debug ]]; then profile=dev; fi
    tests=$(cd "$SCRIPTS/.." && cargo test --locked --profile "$profile" -p tartan --test kubernetes --no-run 2>&1 |
        sed -nE 's/^ *Executable .*\((.*)\)$/\1/p')
    real_server
    # No subnet is assigned but by the tests.
    cluster stop control kube-controller-manager
    real env TARTAN_TEST_KUBECONFIG="$REAL_CONFIG" "$(realpath "$SCRIPTS/../$tests")" --test-threads=1 \
        membership own_record
}

case ${1:-} in
manifests) manifests ;;
real) in_cluster ;;
registry) registry ;;
*) die "manifests, real or registry?" ;;
esac
