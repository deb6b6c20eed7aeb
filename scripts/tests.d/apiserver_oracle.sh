#!/usr/bin/env bash
# The testbed's Kubernetes API server, compared with the real one: both are asked the same by HTTP and must answer the same,
# field by field: codes, reasons, events, metadata.
#
# apiserver_oracle.sh PART [record]: `recorded` compares with what the real server of Kubernetes 1.20 answered once
# (tools/apiserver_http.answers); `real` asks the real server itself, that of scripts/kubernetes, or the one that
# TARTAN_TEST_KUBECONFIG names, which is asked nothing of compacted revisions and whose Nodes no controller may give subnets
# to. With `record` it writes the answers anew.
# needs: scripts/kubernetes
# case: recorded
# full: real
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/apiserver.sh
. "$TOOLS/apiserver.sh"

RECORD=$TOOLS/apiserver_http.answers
COMPACT=$SCRATCH/compact
[ -z "${TARTAN_TEST_KUBECONFIG:-}" ] || COMPACT=-

# ask FILE CMD...: what the server answers that apiserver_http.py, whose arguments these are, asks.
ask() {
    timeout 120 "${@:2}" >"$1" || fail "not everything could be asked: see $1"
}

# compare WHAT EXPECTED FOUND
compare() {
    local answer
    if answer=$(python3 "$TOOLS/apiserver_compare.py" "$2" "$3"); then say "compared with $1: $answer"; else fail "compared with $1: $answer"; fi
}

against_real() {
    local compact=$SCRATCH/compact-real
    if [ "$COMPACT" = - ]; then
        REAL_CONFIG=$TARTAN_TEST_KUBECONFIG
        compact=-
    else
        real_server
    fi
    real kubectl apply -f "$DEPLOY/rbac.yaml"
    real "$DEPLOY/make-kubeconfig" --output "$SCRATCH/account" --duration 3600
    if [ "$compact" != - ]; then
        # Both of them write to Nodes.
        cluster stop control kube-scheduler
        cluster stop control kube-controller-manager
    fi
    ask "$SCRATCH/real" real "$YAML_PYTHON" "$TOOLS/apiserver_http.py" "$REAL_CONFIG" "$SCRATCH/account" "$compact"
    compare "the real server" "$SCRATCH/real" "$SCRATCH/found"
    if [ "$1" = record ]; then cp "$SCRATCH/real" "$RECORD"; fi
    [ "$compact" != - ] || real kubectl delete --wait=false -f "$DEPLOY/rbac.yaml"
}

test_server
ask "$SCRATCH/found" "$YAML_PYTHON" "$TOOLS/apiserver_http.py" "$SCRATCH/kubeconfig" "$SCRATCH/kubeconfig-token" "$COMPACT"
case ${1:-} in
recorded) compare "the record" "$RECORD" "$SCRATCH/found" ;;
real) against_real "${2:-}" ;;
*) die "recorded or real?" ;;
esac
