#!/usr/bin/env bash
# The testbed's Kubernetes API server, compared with the real one: both are asked the same by HTTP, by Kubernetes' Python
# client and by kubectl, and must answer the same, field by field: codes, reasons, events, metadata.
#
# apiserver_oracle.sh PART [record]: `recorded` compares with what the real server of Kubernetes 1.20 answered once
# (tools/apiserver_*.answers); `real` asks the real server itself, that of scripts/kubernetes, or the one that
# TARTAN_TEST_KUBECONFIG names, which is asked nothing of compacted revisions and whose Nodes no controller may give subnets
# to. With `record` it writes the answers anew.
# needs: scripts/kubernetes
# case: recorded
# full: real
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/apiserver.sh
. "$TOOLS/apiserver.sh"

# How the servers are asked.
WAYS=(http python kubectl)

# ask WAY KUBECONFIG RESTRICTED COMPACT: asks as in tools/apiserver_WAY.py.
ask() {
    timeout 120 "$VENV/bin/python" "$TOOLS/apiserver_$1.py" "${@:2}" || fail "not everything could be asked by $1"
}

# Go's clients send no token without TLS: kubectl asks in the user's name.
ask_test_server() {
    local compact=$SCRATCH/compact restricted=token
    [ "$1" != kubectl ] || restricted="as"
    [ -z "${TARTAN_TEST_KUBECONFIG:-}" ] || compact=-
    ask "$1" "$SCRATCH/kubeconfig" "$SCRATCH/kubeconfig-$restricted" "$compact" >"$SCRATCH/$1.found"
}

# compare WAY WHAT OPTION... EXPECTED FOUND
compare() {
    local answer
    if answer=$(python3 "$TOOLS/apiserver_compare.py" "${@:3}"); then
        say "asked by $1, compared with $2: $answer"
    else
        fail "asked by $1, compared with $2: $answer"
    fi
}

recorded() {
    local way
    for way in "${WAYS[@]}"; do
        ask_test_server "$way"
        compare "$way" "the record" --some "$TOOLS/apiserver_$way.answers" "$SCRATCH/$way.found"
        at_most "questions by $way that were not asked, which an old kubectl alone may have" \
            "$([ "$way" = kubectl ] && echo 6 || echo 0)" \
            "$(($(wc -l <"$TOOLS/apiserver_$way.answers") - $(wc -l <"$SCRATCH/$way.found")))"
    done
}

against_real() {
    local way compact=$SCRATCH/compact-real
    if [ -n "${TARTAN_TEST_KUBECONFIG:-}" ]; then
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
    for way in "${WAYS[@]}"; do
        ask_test_server "$way"
        real timeout 120 "$VENV/bin/python" "$TOOLS/apiserver_$way.py" "$REAL_CONFIG" "$SCRATCH/account" "$compact" \
            >"$SCRATCH/$way.real" || fail "not everything could be asked of the real server by $way"
        compare "$way" "the real server" "$SCRATCH/$way.real" "$SCRATCH/$way.found"
        if [ "$1" = record ]; then
            cp "$SCRATCH/$way.real" "$TOOLS/apiserver_$way.answers"
        elif [ "$compact" != - ]; then
            compare "$way: the real server" "its record" --some "$TOOLS/apiserver_$way.answers" "$SCRATCH/$way.real"
        fi
    done
    [ "$compact" != - ] || real kubectl delete --wait=false -f "$DEPLOY/rbac.yaml"
}

python_client
test_server
case ${1:-} in
recorded) recorded ;;
real) against_real "${2:-}" ;;
*) die "recorded or real?" ;;
esac
