# shellcheck shell=bash
# A Kubernetes cluster of scripts/kubernetes for a test, which goes with it. Sourced after test_case.sh.

# Seconds: for Kubernetes' own work on a slow machine.
PATIENCE=120

cluster() {
    "$SCRIPTS/kubernetes" "$1" --prefix "$PREFIX" "${@:2}"
}

kubectl() {
    cluster exec control -- kubectl --request-timeout 20s "$@"
}

# on NAME CMD...: in a node's network namespace and among its programs.
on() {
    cluster exec "$1" -- "${@:2}"
}

# The names of the nodes, a line each.
nodes() {
    kubectl get nodes -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}'
}

# Pods that answer with a version, and their Service (web.yaml). Waits until they are there.
web() {
    kubectl apply -f - >/dev/null <"$TOOLS/web.yaml"
    rolled_out
}

# A line for each pod of `web` that is not on its way out: its name, node and address.
pods() {
    kubectl get pods -l app=web -o json | jq -r '.items[] | select(.metadata.deletionTimestamp == null)
        | "\(.metadata.name) \(.spec.nodeName) \(.status.podIP)"' | sort
}

rolled_out() {
    kubectl rollout status deployment/web --timeout "${PATIENCE}s" --request-timeout 0 >/dev/null || fail "the rollout does not complete"
    # A pod on its way out answers for a while.
    until_true "$PATIENCE" "old pods are gone" no_old_pods || true
}

no_old_pods() {
    [ "$(kubectl get pods -l app=web -o name | wc -l)" = "$(pods | wc -l)" ] && [ "$(endpoints)" = "$(pods | awk '{ print $3 }' | sort)" ]
}

endpoints() {
    kubectl get endpoints web -o json | jq -r '.subsets[]?.addresses[]?.ip' | sort
}

# Always runs, before what takes a test's lab down.
cluster_down() {
    local code=$? pid log
    set +e
    for pid in "${STARTED[@]}"; do stop "$pid" KILL; done
    if [ "$code" != 0 ] || [ "$FAILURES" != 0 ]; then
        kubectl get pods -o wide
        kubectl get events | tail -n 30
        for log in "$LAB_STATE"/node*/log "$LAB_STATE"/control/*.log "$LAB_STATE"/host-*/*.log; do
            [ -s "$log" ] && echo "--- the end of $log" && tail -n 15 "$log"
        done
    fi
    cluster down || fail "the census after 'kubernetes down'"
    (exit "$code")
    finish
}
trap cluster_down EXIT
