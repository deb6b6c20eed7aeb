# shellcheck shell=bash
# A Kubernetes cluster of scripts/kubernetes for a test, which goes with it. Sourced after test_case.sh.

# Seconds: for Kubernetes' own work on a slow machine.
PATIENCE=120
# The Service of web.yaml.
SERVICE=10.96.1.1
NODE_PORT=30080
# Requests to a Service until every one of its pods has answered: the chance that one of six has not is below 1e-9.
REQUESTS=140

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

# spread COUNTS: the number of pods of each node, in the nodes' order.
spread() {
    equal "pods on node1, node2 ..." "$1" "$(for node in $(nodes); do pods | grep -c " $node "; done | paste -sd ' ')"
}

# Every pod pings every other, whichever node has it.
pods_reach_each_other() {
    local from to address all
    all=$(pods)
    [ "$(wc -l <<<"$all")" -ge 4 ] || fail "of four pods or more these are left: $all"
    while read -r from _ <&3; do
        while read -r to _ address <&4; do
            [ "$from" != "$to" ] || continue
            kubectl exec "$from" -- ping -c 3 -i 0.2 -W 3 "$address" >"$SCRATCH/ping" </dev/null ||
                fail "$from does not reach $to at $address: $(cat "$SCRATCH/ping")"
        done 4<<<"$all"
    done 3<<<"$all"
    say "pings between $(wc -l <<<"$all") pods: all answered"
}

# service_answers NAME ADDRESS:PORT: asks from there until every pod of `web` has answered, and with its version.
service_answers() {
    local request answers='' answer expected version
    version=$(kubectl get deployment web -o 'jsonpath={.spec.template.spec.containers[0].env[0].value}')
    expected=$(pods | awk -v version="$version" '{ print $1, version }')
    for ((request = 0; request < REQUESTS; request++)); do
        if ! answer=$(on "$1" timeout 10 busybox wget -q -O - "http://$2/" 2>&1); then
            fail "$2 from $1: $answer"
            return
        fi
        answers=$(sort -u <<<"$answers"$'\n'"$answer" | sed '/^$/d')
        if [ "$answers" = "$expected" ]; then break; fi
    done
    same "pods that answered $1 at $2" "$expected" "$answers"
}

services() {
    local node
    for node in $(nodes); do service_answers "$node" "$SERVICE:80"; done
    service_answers mallory "192.0.2.1:$NODE_PORT"
    service_answers mallory "192.0.2.2:$NODE_PORT"
}

all_ready() {
    [ "$(kubectl get nodes -o json | jq -c '[.items[].status.conditions[] | select(.type == "Ready") | .status] | unique')" = '["True"]' ]
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
