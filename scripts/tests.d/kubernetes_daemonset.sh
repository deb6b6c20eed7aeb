#!/usr/bin/env bash
# One `kubectl apply`: in a Kubernetes cluster (scripts/kubernetes) whose nodes have no network, the manifests of
# deploy/kubernetes make Tartan's pods run, with the subnets that the cluster gives and annotations that are flannel's
# to the byte; the nodes become ready, pods of a Deployment reach each other, and a Service reaches all of them from
# every node, over a rollout. A `kubectl rollout restart` under load loses no connection, and pods that start beside
# others take over from them. While API server and etcd are dead, packets are forwarded as before, also by a service
# that starts then. When Tartan is removed as docs/kubernetes.md says, the nodes are as before.
#
#   control: etcd, API server ... (killed)      mallory: outside, asks for node ports
#      ║ underlay
#   node1: kubelet, kube-proxy, containerd ═══ node2: the same
#     ├ tartan, a pod of the host's network       ├ tartan
#     └ pods of `web`                             └ pods of `web`, one of which holds connections
#
# needs: scripts/kubernetes
# alone: a kubelet on a busy machine misses what it has to do in time
# full:
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/held_load.sh"
. "$TOOLS/machine.sh"
. "$TOOLS/made_release.sh"
. "$TOOLS/helm.sh"
. "$TOOLS/cluster.sh"

DEPLOY=$(readlink -f "$SCRIPTS/../deploy/kubernetes")
# The Service that leads to one pod of node2, where connections are held.
HELD_SERVICE=10.96.1.2
HELD_NODE_PORT=30090

of_system() {
    kubectl -n tartan-system "$@"
}

# tartan NODE ARG...: its pod's program, which the node can ask without the API server.
tartan() {
    on "$1" "$BIN/tartan" "${@:2}"
}

# prepare NODE: what a cluster's own installation brings: the usual plugins, and here the image, for want of a registry.
prepare() {
    local kind
    on "$1" cp -r /usr/lib/cni/. /opt/cni/bin/
    on "$1" ctr -n k8s.io images import "$DIST"/*-image-*.tar >/dev/null || die "containerd does not take the image"
    node_holds "$1" >"$SCRATCH/before.$1"
    # It sees each kind of thing that is to go.
    for kind in 'd .* /opt/cni/bin' 'link eth0' 'route ' 'nft table' 'net.ipv4.ip_forward = 0'; do
        grep -q "^$kind" "$SCRATCH/before.$1" || die "the census of $1 does not see '$kind'"
    done
}

# What a node has: files where Tartan or what its pods mount could leave some, and its network. /run/flannel, which a
# kubelet has made, may stay as an empty directory until the next boot; that of results is the runtime's (libcni).
node_holds() {
    on "$1" find /etc/cni /etc/tartan /opt /run /var/lib/cni /var/lib/tartan /dev/net -xdev \
        \( -path /run/containerd -o -path "$LAB_STATE" \) -prune -o ! -path /run/flannel ! -path /var/lib/cni/results \
        -printf '%y %m %p\n' 2>/dev/null | sort || true
    # nft warns of kube-proxy's tables.
    machine_network "$1" 2>/dev/null
}

# kube-proxy and containerd take a while for what is no more.
node_is_as_before() {
    node_holds "$1" >"$SCRATCH/after.$1"
    cmp -s "$SCRATCH/before.$1" "$SCRATCH/after.$1"
}

# rolled DAEMONSET: waits until it runs on every node as it should.
rolled() {
    # shellcheck disable=SC2153 # cluster.sh sets it.
    of_system rollout status "daemonset/$1" --timeout "${PATIENCE}s" --request-timeout 0 >/dev/null || {
        of_system describe pods | tail -n 60
        die "the rollout of $1 does not complete"
    }
    say "daemonset/$1 runs on every node"
}

# What Kubernetes has given a node is what Tartan works with. Its annotations are what flanneld would write of a node
# with the same VTEP, and nothing else below its prefix (flannel pkg/subnet/kube/kube.go, AcquireLease).
registry_agrees() {
    local node object mac
    equal "different subnets of the cluster's network" 2 "$(kubectl get nodes -o json |
        jq '[.items[].spec.podCIDR | select(test("^10\\.244\\.[0-9]+\\.0/24$"))] | unique | length')"
    for node in node1 node2; do
        until_true "$PATIENCE" "$node has no problem" tartan "$node" status || true
        object=$(kubectl get node "$node" -o json)
        mac=$(vtep_mac_of "$node" 4)
        equal "subnets, peers and problems of $node" "$(jq -c '[[.spec.podCIDR], 1, []]' <<<"$object")" \
            "$(agent_json "$node" status | jq -c '[.subnets, .peers, .problems]')"
        equal "annotations of $node, and its NetworkUnavailable" \
            "$(jq -nc --arg address "$(underlay_of "$node" 4)" --arg mac "$mac" '[{
                "backend-data": "{\"VNI\":1,\"VtepMAC\":\"\($mac)\"}", "backend-type": "vxlan",
                "kube-subnet-manager": "true", "public-ip": $address}, "False"]')" \
            "$(jq -c '[(.metadata.annotations | to_entries | map(select(.key | startswith("flannel.alpha.coreos.com/"))
                | .key |= ltrimstr("flannel.alpha.coreos.com/")) | sort | from_entries),
                (.status.conditions[] | select(.type == "NetworkUnavailable") | .status)]' <<<"$object")"
    done
}

# Connections that go on: between pods of two nodes, from a node to a ClusterIP, and from outside to the node port of
# the node that has not the pod, so that its packets are masqueraded.
start_held() {
    local server client
    read -r _ _ client < <(pod_on node1)
    read -r server _ ADDRESS < <(pod_on node2)
    kubectl label pod "$server" held=yes >/dev/null
    kubectl apply -f - >/dev/null <<TEXT
apiVersion: v1
kind: Service
metadata: {name: held}
spec:
  type: NodePort
  clusterIP: $HELD_SERVICE
  selector: {held: "yes"}
  ports: [{port: $PORT, targetPort: $PORT, nodePort: $HELD_NODE_PORT}]
TEXT
    enter node2 "$ADDRESS"
    "${ENTER[@]}" python3 "$TOOLS/steady.py" serve "$PORT" &
    STARTED+=("$!")
    until_true 30 "the held Service answers" in_ns node1 timeout 5 bash -c ": >/dev/tcp/$HELD_SERVICE/$PORT"
    enter node1 "$client"
    hold_from "pod of node1 to pod of node2" "$ADDRESS" "$PORT" "${ENTER[@]}"
    hold "node1 to the ClusterIP" node1 "$HELD_SERVICE" "$PORT"
    hold "outside to the NodePort at node1" mallory "$(underlay_of node1 4)" "$HELD_NODE_PORT"
}

# pinged SECONDS BAR CMD...: while the command runs, of 20 pings a second from node1's pod to node2's no more go without
# an answer than are sent in BAR milliseconds. The connections go on.
pinged() {
    local pinger answered count=$(($1 * 20))
    "${ENTER[@]}" python3 "$TOOLS/pings.py" "$ADDRESS" "$count" 0.05 3 >"$SCRATCH/pings" &
    pinger=$!
    STARTED+=("$pinger")
    "${@:3}"
    wait "$pinger" || fail "pings.py"
    answered=$(sed -n 's/ received//p' "$SCRATCH/pings")
    at_most "ms without answers, of $1 s with '${*:3}'" "$2" $(((count - answered) * 50))
    all_go_on "after '${*:3}'"
}

restarted() {
    of_system rollout restart daemonset/tartan >/dev/null
    rolled tartan
}

# This release of Kubernetes knows no maxSurge. Two DaemonSets do what it does: the pods of the one take over from those
# of the other, are ready, and the others are deleted. Then the same back.
taken_over() {
    local old new
    for new in tartan-next tartan; do
        of_system get daemonset tartan -o json | jq --arg name "$new" 'del(.status)
            | .metadata |= {name: $name, namespace, labels}
            | (.spec.selector.matchLabels, .spec.template.metadata.labels)["app.kubernetes.io/name"] = $name' \
            >"$SCRATCH/$new.json"
    done
    for old in tartan tartan-next; do
        new=$([ "$old" = tartan ] && echo tartan-next || echo tartan)
        kubectl apply -f "$SCRATCH/$new.json" >/dev/null || fail "the API server refuses the second DaemonSet"
        rolled "$new"
        of_system delete daemonset "$old" --timeout 60s --request-timeout 0 >/dev/null || fail "$old is not deleted"
        all_go_on "after pods that took over from those of $old"
    done
}

# api VERB [SIGNAL]: start, or stop.
api() {
    local program
    for program in etcd kube-apiserver; do cluster "$1" control "$program" "${@:2}"; done
}

# API server and etcd die, and come back 15 seconds later.
outage() {
    sleep 3
    api stop KILL
    sleep 15
    api start
}

# They die again, and a service of Tartan is killed: the next one, which reaches no API server, forwards, and says so.
killed_without_api() {
    local restarts
    api stop KILL
    restarts=$(agent_json node1 status | jq .restarts)
    on node1 pkill -KILL -f 'service --agent-root'
    until_true 20 "a new service on node1, without the registry" registry_is_lost node1 $((restarts + 1))
}

registry_is_lost() {
    agent_json "$1" status | jq -e --argjson restarts "$2" \
        '.restarts == $restarts and .snapshot_adopted and any(.problems[]; .code == "registry-lost")'
}

# Whether the removal says so on both nodes.
refused() {
    [ "$(of_system logs -l app.kubernetes.io/name=tartan-remove -c uninstall-cni --prefix |
        awk '/pods are attached/ && !seen[$1]++' | wc -l)" = 2 ]
}

# As docs/kubernetes.md says. Tartan is not to go from under pods: the removal waits for them.
remove_tartan() {
    local node
    kubectl delete -k "$DEPLOY" --timeout 120s --request-timeout 0 >/dev/null || fail "the removal"
    kubectl apply -k "$DEPLOY/remove" >/dev/null || fail "the API server refuses deploy/kubernetes/remove"
    until_true "$PATIENCE" "the removal waits for the pods of both nodes" refused || true
    for node in node1 node2; do
        kubectl drain "$node" --ignore-daemonsets --force --delete-emptydir-data --timeout 90s --request-timeout 0 \
            >/dev/null 2>&1 || fail "$node is not drained"
    done
    kubectl delete deployment,service web >/dev/null
    rolled tartan-remove
    kubectl delete -k "$DEPLOY/remove" --timeout 120s --request-timeout 0 >/dev/null || fail "its own removal"
    for node in node1 node2; do
        kubectl uncordon "$node" >/dev/null
        until_true 60 "$node is as before" node_is_as_before "$node" || true
        same "files and network of $node, before the installation and after" "$(cat "$SCRATCH/before.$node")" \
            "$(cat "$SCRATCH/after.$node")"
    done
}

works() {
    until_true "$PATIENCE" "every node is ready" all_ready
    everything_works
    registry_agrees
}

make_release image
cluster down >/dev/null
cluster up --nodes 2
for NODE in node1 node2; do prepare "$NODE"; done
equal "nodes are ready before the installation" false "$(all_ready)"
# The kustomize of the cluster's own kubectl knows no patches in place.
"$HELM/kubectl" kustomize "$DEPLOY/../clusters/before-1.22" | kubectl apply -f - >/dev/null || die "the installation"
rolled tartan
kubectl apply -f - >/dev/null <"$TOOLS/web.yaml"
rolled_out
works
kubectl set env deployment/web VERSION=two >/dev/null
rolled_out
works
start_held
pinged 80 30000 restarted
pinged 80 1000 taken_over
pinged 40 0 outage
killed_without_api
pinged 5 0 true
api start
load_survived
kubectl delete service held >/dev/null
works
for NODE in node1 node2; do law_one "$NODE"; done
remove_tartan
