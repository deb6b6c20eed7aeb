# shellcheck shell=bash
# A Kubernetes cluster of scripts/kubernetes for a test, which goes with it. Sourced after test_case.sh.

# Seconds: for Kubernetes' own work on a slow machine.
PATIENCE=120
# The Service of web.yaml.
SERVICE=10.96.1.1
NODE_PORT=30080
# Requests to a Service, of which every one of its pods answers some: one of four has none in 1 of 1e11 runs.
REQUESTS=100

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

# A line for each pod of web.yaml that is not on its way out: its name, node and address.
pods() {
    kubectl get pods -l app=web -o json | jq -r '.items[] | select(.metadata.deletionTimestamp == null)
        | "\(.metadata.name) \(.spec.nodeName) \(.status.podIP)"' | sort
}

# pod_on NODE: the line of one of its pods.
pod_on() {
    pods | awk -v node="$1" '$2 == node && !found++'
}

# enter NODE ADDRESS: what follows the words of ENTER runs in the network namespace of the node's pod of that address.
enter() {
    local host netns
    host=$(cat "$LAB_STATE/host-$1/catatonit.pid")
    # shellcheck disable=SC2016
    netns=$(on "$1" sh -c 'for space in /run/netns/*; do
        [ -z "$(nsenter --net="$space" ip -o address show to "$0")" ] || echo "$space"; done' "$2")
    [ -n "$netns" ] || die "no pod of $1 has $2"
    # shellcheck disable=SC2034 # The tests use it.
    ENTER=(nsenter --target "$host" --mount nsenter --net="$netns")
}

rolled_out() {
    kubectl rollout status deployment/web --timeout "${PATIENCE}s" --request-timeout 0 >/dev/null ||
        fail "the rollout does not complete"
    # A pod on its way out answers for a while.
    until_true "$PATIENCE" "old pods are gone" no_old_pods || true
}

no_old_pods() {
    [ "$(kubectl get pods -l app=web -o name | wc -l)" = "$(pods | wc -l)" ] &&
        [ "$(kubectl get endpoints web -o json | jq -r '.subsets[]?.addresses[]?.ip' | sort)" = \
            "$(pods | awk '{ print $3 }' | sort)" ]
}

# Each node has pods, and each pings every other, whichever node has it; the Service's address on every node
# and its port from outside lead to all of them.
everything_works() {
    local all node pod names addresses
    all=$(pods)
    equal "nodes that have pods" $'node1\nnode2' "$(awk '{ print $2 }' <<<"$all" | sort -u)"
    mapfile -t names < <(awk '{ print $1 }' <<<"$all")
    mapfile -t addresses < <(awk '{ print $3 }' <<<"$all")
    for pod in "${names[@]}"; do
        # shellcheck disable=SC2016
        equal "addresses of pods that $pod does not reach" '' "$(kubectl --request-timeout 0 exec "$pod" -- sh -c \
            'for to; do ping -c 3 -i 0.2 -W 3 "$to" >/dev/null || echo "$to"; done' sh "${addresses[@]}")"
    done
    for node in 1 2; do
        service_answers "node$node" "$SERVICE:80"
        service_answers mallory "192.0.2.$node:$NODE_PORT"
    done
}

# service_answers NAME ADDRESS:PORT: asked from there, every pod of `web` answers, with its version, and none fails.
service_answers() {
    local version
    version=$(kubectl get deployment web -o 'jsonpath={.spec.template.spec.containers[0].env[0].value}')
    # shellcheck disable=SC2016
    same "pods that answered $1 at $2" "$(pods | awk -v version="$version" '{ print $1, version }')" \
        "$(in_ns "$1" sh -c 'for number in $(seq "$0"); do timeout 10 busybox wget -q -O - "http://$1/" 2>&1 ||
            echo "no answer"; done' "$REQUESTS" "$2" | sort -u)"
}

all_ready() {
    kubectl get nodes -o json |
        jq -e '[.items[].status.conditions[] | select(.type == "Ready").status] | unique == ["True"]'
}

# Always runs, before what takes a test's lab down.
cluster_down() {
    local code=$? pid
    set +e
    for pid in "${STARTED[@]}"; do stop "$pid" KILL; done
    if [ "$code" != 0 ] || [ "$FAILURES" != 0 ]; then
        kubectl get pods,events --all-namespaces -o wide | tail -n 40
        for pid in node1 node2; do on "$pid" sh -c 'tail -n 15 /var/log/pods/*/*/*.log'; done
        tail -n 15 "$LAB_STATE"/control/*.log "$LAB_STATE"/host-*/*.log
    fi
    cluster down || fail "the census after 'kubernetes down'"
    (exit "$code")
    finish
}
trap cluster_down EXIT
