#!/usr/bin/env bash
# The testbed's Kubernetes API server, compared with the real one: both are asked the same by HTTP and must answer the
# same: codes, reasons, events, Nodes (tools/apiserver_ask.py).
#
# apiserver_oracle.sh PART [record]: `recorded` compares with what the real server of Kubernetes 1.20 answered once
# (tools/apiserver_answers), `real` asks that of scripts/kubernetes; with `record` it writes the answers anew.
# needs: scripts/kubernetes
# case: recorded
# full: real
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/apiserver.sh"

ANSWERS=$TOOLS/apiserver_answers

# ask FILE CMD...: what a server answers, by apiserver_ask.py and its arguments.
ask() {
    timeout 120 "${@:2}" <"$ANSWERS" >"$1" || fail "not everything could be asked: the last was $(tail -n 1 "$1")"
}

# proxy PORT KUBECONFIG: leads there, in the control plane's namespace.
proxy() {
    start_in control kubectl --kubeconfig "$2" proxy --port "$1" >/dev/null
    until_true 10 "a proxy" is_bound control tcp "$1"
}

ask_real() {
    real_server
    real kubectl apply -f "$DEPLOY/rbac.yaml"
    real "$DEPLOY/make-kubeconfig" --output "$SCRATCH/account" --duration 3600
    # Both of them write to Nodes.
    cluster stop control kube-scheduler
    cluster stop control kube-controller-manager
    proxy 8091 "$REAL_CONFIG"
    proxy 8092 "$SCRATCH/account"
    ask "$SCRATCH/real" real "$YAML_PYTHON" "$TOOLS/apiserver_ask.py" http://127.0.0.1:8091 http://127.0.0.1:8092 \
        "$(sed -n 's/^ *token: //p' "$SCRATCH/account" | tr -d '"')" "$COMPACT_REAL"
    if [ "$1" = record ]; then cp "$SCRATCH/real" "$ANSWERS"; fi
}

test_server
URL=$(cat "$SCRATCH/url")
ask "$SCRATCH/found" "$YAML_PYTHON" "$TOOLS/apiserver_ask.py" "$URL" "$URL" restricted \
    "curl -fsS -m 10 -X POST $URL/test/compact"
EXPECTED=$ANSWERS
if [ "$1" = real ]; then
    ask_real "${2:-}"
    EXPECTED=$SCRATCH/real
fi
same "answers" "$(cat "$EXPECTED")" "$(cat "$SCRATCH/found")"
