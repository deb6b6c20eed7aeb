#!/usr/bin/env bash
# A Kubernetes cluster (scripts/kubernetes): nodes work with the subnets that it gives them; pods of a Deployment reach
# each other, and a Service reaches all of them from every node; a rollout, a node that joins and one that leaves change
# nothing of that; and while API server and etcd are dead, packets are forwarded as before, also by a service that starts
# then. With the registry kubernetes, the nodes' annotations are flannel's to the byte.
#
#   control: etcd, API server ...   (killed)
#      ║ underlay
#   node1: kubelet, kube-proxy, tartan ══ node2: ... ══ node3, which joins and leaves
#     └ pods of `web`                       └ pods of `web`          └ pods of `web`
#
# kubernetes_real.sh REGISTRY: file or kubernetes, where Tartan's leases come from.
# needs: scripts/kubernetes
# alone: a kubelet on a busy machine misses what it has to do in time
# full: kubernetes
# full: file
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/cluster.sh
. "$TOOLS/cluster.sh"

REGISTRY=$1
# Of the pings over the death of the API server: seconds between two.
INTERVAL=0.05

# What flanneld would write of a node with the same VTEP, and nothing else below its prefix (flannel
# pkg/subnet/kube/kube.go, AcquireLease).
annotations_are_flannels() {
    local node address expected
    for node in $(nodes); do
        address=$(underlay_of "$node" 4)
        expected=$(jq -n -S -c --arg address "$address" --arg data "{\"VNI\":1,\"VtepMAC\":\"$(vtep_mac_of "$node" 4)\"}" \
            '{"backend-data": $data, "backend-type": "vxlan", "kube-subnet-manager": "true", "public-ip": $address}')
        equal "annotations of $node" "$expected" "$(kubectl get node "$node" -o json | jq -S -c '.metadata.annotations
            | with_entries(select(.key | startswith("flannel.alpha.coreos.com/")) | .key |= ltrimstr("flannel.alpha.coreos.com/"))')"
        equal "NetworkUnavailable of $node" '["False"]' "$(kubectl get node "$node" -o json |
            jq -c '[.status.conditions[] | select(.type == "NetworkUnavailable") | .status]')"
    done
}

# What Kubernetes has given a node is what Tartan works with, and no other has it.
subnets_agree() {
    local node given all=
    for node in $(nodes); do
        given=$(kubectl get node "$node" -o 'jsonpath={.spec.podCIDR}')
        equal "subnet of $node in Tartan" "[\"$given\"]" "$(agent_json "$node" status | jq -c .subnets)"
        [[ $given =~ ^10\.244\.[0-9]+\.0/24$ ]] || fail "the subnet of $node is no /24 of 10.244.0.0/16: $given"
        all+="$given"$'\n'
    done
    equal "subnets that two nodes have" '' "$(sort <<<"$all" | uniq -d)"
}

everything_works() {
    local node
    subnets_agree
    if [ "$REGISTRY" = kubernetes ]; then annotations_are_flannels; fi
    for node in $(nodes); do
        grep -q " $node " <<<"$(pods)" || fail "$node has no pod"
    done
    pods_reach_each_other
    services
}

# pod_pings FROM ADDRESS COUNT: in the background, in the network namespace that the record of FROM, a line of `pods`,
# names.
pod_pings() {
    local pod node netns
    read -r pod node _ <<<"$1"
    netns=$(cat "$LAB_STATE/$node"/run/tartan/attachments/*.json | jq -r --arg pod "$pod" 'select(.pod.name == $pod) | .netns')
    [ -n "$netns" ] || die "$node has no record of $pod"
    on "$node" nsenter --net="$netns" python3 -B "$TOOLS/pings.py" "$2" "$3" "$INTERVAL" 3 >"$SCRATCH/pings.$pod" &
    STARTED+=("$!")
    PINGERS+=("$pod $!")
}

kill_api() {
    say "SIGKILL of the API server and etcd"
    cluster stop --kill control kube-apiserver
    cluster stop --kill control etcd
}

start_api() {
    cluster start control etcd
    cluster start control kube-apiserver
    say "both are back"
}

# ping_both_ways FIRST SECOND COUNT: two lines of `pods`. Nothing here needs the API.
ping_both_ways() {
    PINGERS=()
    pod_pings "$1" "${2##* }" "$3"
    pod_pings "$2" "${1##* }" "$3"
}

all_answered() {
    local pinger
    for pinger in "${PINGERS[@]}"; do
        wait "${pinger##* }" || fail "pings.py of ${pinger%% *}"
        equal "pings of ${pinger%% *}" "$1 received" "$(cat "$SCRATCH/pings.${pinger%% *}")"
    done
}

# kill_service NODE: another service follows, whatever it then says of itself.
kill_service() {
    local pid
    pid=$(service_pid "$1")
    say "SIGKILL of the service of $1, process $pid"
    kill -KILL "$pid"
    until_true 5 "a new service on $1" another_service "$1" "$pid" || true
}

another_service() {
    local pid
    pid=$(service_pid "$1") && [ -n "$pid" ] && [ "$pid" != "$2" ]
}

# Nothing comes from the registry, and the node says so.
registry_is_lost() {
    agent_json "$1" status | jq -e 'any(.problems[]; .code == "registry-lost")'
}

# The API server and etcd die, and come back 15 seconds later: of 40 seconds' pings between pods of two nodes, both ways,
# none is lost. They die again, and a service of Tartan is killed: the next one, which has nobody to ask, forwards. The
# cluster works on afterwards.
api_dies() {
    local first second node
    first=$(pods | awk '$2 == "node1" { print; exit }')
    second=$(pods | awk '$2 == "node2" { print; exit }')
    ping_both_ways "$first" "$second" 800
    sleep 3
    kill_api
    sleep 15
    start_api
    all_answered 800
    kill_api
    kill_service node1
    if [ "$REGISTRY" = kubernetes ]; then
        for node in node1 node2; do until_true 10 "$node misses its registry" registry_is_lost "$node" || true; done
    fi
    ping_both_ways "$first" "$second" 100
    all_answered 100
    start_api
    for node in node1 node2; do until_true "$PATIENCE" "$node has no problem" tartan "$node" status || true; done
    until_true "$PATIENCE" "every node is ready" all_ready || true
    kubectl set env deployment/web VERSION=three >/dev/null
    rolled_out
    everything_works
}

node_joins_and_leaves() {
    say "node3 joins"
    cluster join
    kubectl scale deployment web --replicas 6 >/dev/null
    rolled_out
    everything_works
    peers 2
    say "node3 leaves"
    kubectl scale deployment web --replicas 4 >/dev/null
    cluster leave node3
    rolled_out
    peers 1
    subnets_agree
    pods_reach_each_other
    services
}

# peers COUNT: how many every node has, which may take a moment to get there.
peers() {
    local node
    for node in $(nodes); do until_true 10 "$node has $1 peers" peers_are "$node" "$1" || true; done
}

peers_are() {
    [ "$(agent_json "$1" status | jq .peers)" = "$2" ]
}

cluster down >/dev/null
cluster up --nodes 2 --tartan --registry "$REGISTRY"
web
spread '2 2'
everything_works
say "another version is rolled out"
kubectl set env deployment/web VERSION=two >/dev/null
rolled_out
everything_works
api_dies
node_joins_and_leaves
for NODE in $(nodes); do law_one "$NODE"; done
kubectl delete deployment,service web >/dev/null
