#!/usr/bin/env bash
# One `kubectl apply`: in a Kubernetes cluster (scripts/kubernetes) whose nodes have no network, the manifests of
# deploy/kubernetes, or its Helm chart, make Tartan's pods run, the nodes ready, and pods and Services reachable. A `kubectl
# rollout restart` under load loses no connection, and pods that start beside others take over from them. When it is removed as docs/kubernetes.md says, the nodes are as before.
#
#   control: API server ...                     mallory: outside, asks for node ports
#      ║ underlay
#   node1: kubelet, kube-proxy, containerd ═══ node2: the same
#     ├ tartan, a pod of the host's network       ├ tartan
#     └ pods of `web`                             └ pods of `web`, one of which holds connections
#
# kubernetes_daemonset.sh WAY: manifests or helm
# needs: scripts/kubernetes
# alone: a kubelet on a busy machine misses what it has to do in time
# full: manifests
# full: helm
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"
# shellcheck source=scripts/tests.d/tools/machine.sh
. "$TOOLS/machine.sh"
# shellcheck source=scripts/tests.d/tools/made_release.sh
. "$TOOLS/made_release.sh"
# shellcheck source=scripts/tests.d/tools/helm.sh
. "$TOOLS/helm.sh"
# shellcheck source=scripts/tests.d/tools/cluster.sh
. "$TOOLS/cluster.sh"

WAY=${1:-manifests}
DEPLOY=$(readlink -f "$SCRIPTS/../deploy/kubernetes")
# Where held.py serves, in one pod of node2, and the Service that leads there.
PORT=9000
HELD_SERVICE=10.96.1.2
HELD_NODE_PORT=30090
# How often the pods are replaced under load. Pings over the first time, and seconds between two.
RESTARTS=2
PINGS=1600
INTERVAL=0.05
# Seconds in which pods of two nodes may not reach each other while both nodes' pods of Tartan are replaced.
LONGEST_OUTAGE=30
# Milliseconds of the same where pods take over from others beside them, twice on each node.
LONGEST_TAKE_OVER=1000

# On each node what a cluster's own installation brings: the usual plugins, and here the image, for want of a registry.
prepare_nodes() {
    local node archive=("$DIST"/*-image-*.tar)
    for node in $(nodes); do
        on "$node" cp -r /usr/lib/cni/. /opt/cni/bin/
        on "$node" ctr -n k8s.io images import "${archive[0]}" >"$SCRATCH/import" || die "containerd does not take the image: $(cat "$SCRATCH/import")"
    done
}

# What a node has: files where Tartan or what its pods mount could leave some, and its network. /run/flannel, which a kubelet has
# made, may stay as an empty directory until the next boot; that of results is the runtime's (libcni).
node_holds() {
    on "$1" find /etc/cni /etc/tartan /opt /run /var/lib/cni /var/lib/tartan /dev/net -xdev \
        \( -path /run/containerd -o -path "$LAB_STATE" \) -prune -o ! -path /run/flannel ! -path /var/lib/cni/results \
        -printf '%y %m %p\n' 2>/dev/null | sort || true
    # nft warns of kube-proxy's tables.
    machine_network "$1" 2>/dev/null
}

# kube-proxy and containerd take a while for what is no more.
node_is_as_before() {
    [ "$(node_holds "$1")" = "$(cat "$SCRATCH/before.$1")" ]
}

nodes_are_as_before() {
    local node
    for node in $(nodes); do
        until_true 60 "$node is as before" node_is_as_before "$node" || true
        same "files and network of $node, before the installation and after" "$(cat "$SCRATCH/before.$node")" "$(node_holds "$node")"
    done
}

# rolled DAEMONSET: waits until it runs on every node as it should.
rolled() {
    kubectl -n tartan-system rollout status "daemonset/$1" --timeout "${PATIENCE}s" --request-timeout 0 >/dev/null || {
        what_pods_say
        die "the rollout of $1 does not complete"
    }
    say "daemonset/$1 runs on $(kubectl -n tartan-system get daemonset "$1" -o 'jsonpath={.status.numberAvailable}') nodes"
}

what_pods_say() {
    local pod container
    kubectl -n tartan-system get pods -o wide || true
    kubectl -n tartan-system get events | tail -n 20 || true
    for pod in $(kubectl -n tartan-system get pods -o name); do
        for container in $(kubectl -n tartan-system get "$pod" -o 'jsonpath={.spec.initContainers[*].name} {.spec.containers[*].name}'); do
            echo "--- $pod, $container"
            kubectl -n tartan-system logs "$pod" -c "$container" --tail 15 2>&1 || true
        done
    done
}

# by_helm ARG...: as an administrator, in the namespace of the control plane.
by_helm() {
    cluster exec control -- env HELM_CACHE_HOME="$SCRATCH/helm/cache" HELM_CONFIG_HOME="$SCRATCH/helm/config" \
        HELM_DATA_HOME="$SCRATCH/helm/data" "$HELM/helm" "$@"
}

# As docs/kubernetes.md says, with the image's name that scripts/release gives it; as for Kubernetes
# before 1.22.
install_tartan() {
    case $WAY in
    # The kustomize of the cluster's own kubectl knows no patches in place.
    manifests) kubectl_of_today kustomize "$DEPLOY/../clusters/before-1.22" | kubectl apply -f - ;;
    helm)
        kubectl create namespace tartan-system
        kubectl label namespace tartan-system pod-security.kubernetes.io/enforce=privileged
        by_helm install tartan "$DEPLOY/chart" --namespace tartan-system --set 'rollingUpdate=maxUnavailable: 1' \
            --set minReadySeconds=15
        ;;
    esac >"$SCRATCH/installed" 2>&1 || die "the installation: $(cat "$SCRATCH/installed")"
}

# The pods of the cluster go first: without Tartan they reach no other pod. By the manifests they do not, once: then the removal waits
# for them.
remove_tartan() {
    local node container
    [ "$WAY" = manifests ] || drain
    case $WAY in
    manifests) kubectl delete -k "$DEPLOY" --timeout 120s --request-timeout 0 ;;
    helm) by_helm uninstall tartan --namespace tartan-system ;;
    esac >"$SCRATCH/removed" 2>&1 || fail "the removal: $(cat "$SCRATCH/removed")"
    kubectl apply -k "$DEPLOY/remove" >/dev/null 2>&1 || fail "the API server refuses deploy/kubernetes/remove"
    if [ "$WAY" = manifests ]; then
        for node in $(nodes); do
            until_true "$PATIENCE" "the removal from $node waits for its pods" refused "$node" && say "the removal from $node waits for its pods"
        done
        drain
    fi
    rolled tartan-remove
    for node in $(nodes); do
        for container in uninstall-cni cleanup 'done'; do
            said "$node" "$container"
        done
    done
    kubectl delete -k "$DEPLOY/remove" --timeout 120s --request-timeout 0 >/dev/null || fail "the removal of tartan-remove"
    for node in $(nodes); do kubectl uncordon "$node" >/dev/null; done
}

drain() {
    local node
    for node in $(nodes); do
        kubectl drain "$node" --ignore-daemonsets --force --delete-emptydir-data --timeout 90s --request-timeout 0 >/dev/null 2>&1 ||
            fail "$node is not drained"
    done
    kubectl delete deployment,service web >/dev/null
}

refused() {
    grep -q 'pods are attached' <<<"$(said "$1" uninstall-cni)"
}

# said NODE CONTAINER: its log, of the node's pod of tartan-remove.
said() {
    local pod
    pod=$(kubectl -n tartan-system get pods -l app.kubernetes.io/name=tartan-remove --field-selector "spec.nodeName=$1" -o name)
    kubectl -n tartan-system logs "$pod" -c "$2" | sed "s/^/    $1, $2: /"
}

# in_pod NODE ARG...: Tartan's own program, in its pod there.
in_pod() {
    local pod
    pod=$(kubectl -n tartan-system get pods -l app.kubernetes.io/name=tartan --field-selector "spec.nodeName=$1" -o name)
    kubectl -n tartan-system exec "$pod" -c tartan -- /usr/bin/tartan "${@:2}"
}

no_problems() {
    local node
    for node in $(nodes); do
        equal "problems that $node reports" '[]' "$(in_pod "$node" status -o json | jq -c '[.problems[].code]')"
        equal "peers of $node" 1 "$(in_pod "$node" status -o json | jq .peers)"
    done
}

# process_of POD NODE: one of its processes, whose network namespace is the pod's.
process_of() {
    local netns inode file
    netns=$(on "$2" sh -c 'cat /run/tartan/attachments/*.json' |
        jq -r --arg pod "$1" 'select(.pod.name == $pod) | .netns')
    [ -n "$netns" ] || die "$2 has no record of $1"
    inode=$(on "$2" stat -L -c %i "$netns")
    for file in /proc/[0-9]*/ns/net; do
        if [ "$(stat -L -c %i "$file" 2>/dev/null)" = "$inode" ]; then
            file=${file#/proc/}
            echo "${file%%/*}"
            return
        fi
    done
    die "no process is in the network namespace of $1"
}

# Connections that go on: between pods of two nodes, from a node to a ClusterIP, and from outside to the node port of the node
# that has not the pod, so that its packets are masqueraded.
start_held() {
    local client client_node server server_node address
    read -r client client_node _ < <(pods | grep ' node1 ')
    read -r server server_node address < <(pods | grep ' node2 ')
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
    SERVER=$(process_of "$server" "$server_node")
    nsenter --net="/proc/$SERVER/ns/net" python3 "$TOOLS/held.py" serve "$PORT" "$address" &
    STARTED+=("$!")
    until_true 30 "the Service of the held connections" connects "$HELD_SERVICE" || true
    CLIENT=$(process_of "$client" "$client_node")
    ADDRESS=$address
    hold_from "pod of node1 to pod of node2" "$address" "$PORT" nsenter --net="/proc/$CLIENT/ns/net"
    hold "node1 to the ClusterIP" node1 "$HELD_SERVICE" "$PORT"
    hold "outside to the NodePort at node1" mallory "$(underlay_of node1 4)" "$HELD_NODE_PORT"
}

connects() {
    on node1 timeout 5 busybox nc "$1" "$PORT" </dev/null
}

restarts_under_load() {
    local restart pinger answered
    start_held
    nsenter --net="/proc/$CLIENT/ns/net" python3 "$TOOLS/pings.py" "$ADDRESS" "$PINGS" "$INTERVAL" 3 >"$SCRATCH/pings" &
    pinger=$!
    STARTED+=("$pinger")
    for ((restart = 1; restart <= RESTARTS; restart++)); do
        kubectl -n tartan-system rollout restart daemonset/tartan >/dev/null
        rolled tartan
        all_go_on "after restart $restart"
        [ "$restart" = 1 ] || continue
        wait "$pinger" || fail "pings.py"
        answered=$(sed -n 's/ received//p' "$SCRATCH/pings")
        [ "$answered" -gt 0 ] || fail "no ping was answered"
        measured_at_most "ms without answers while the pods of both nodes were replaced" $((LONGEST_OUTAGE * 1000)) \
            $(((PINGS - answered) * 50))
    done
    taken_over
    load_survived
    kubectl delete service held >/dev/null
}

# another NAME: the same DaemonSet by another name, whose pods start beside those that run.
another() {
    kubectl -n tartan-system get daemonset tartan -o json | jq --arg name "$1" '
        del(.status, .metadata.uid, .metadata.resourceVersion, .metadata.creationTimestamp, .metadata.generation, .metadata.annotations)
        | .metadata.name = $name
        | (.spec.selector.matchLabels, .spec.template.metadata.labels)["app.kubernetes.io/name"] = $name'
}

# This release of Kubernetes knows no maxSurge. Two DaemonSets do what it does: the pods of the one take over from those of the other,
# are ready, and the others are deleted. Then the same back.
taken_over() {
    local pinger answered from
    nsenter --net="/proc/$CLIENT/ns/net" python3 "$TOOLS/pings.py" "$ADDRESS" "$PINGS" "$INTERVAL" 3 >"$SCRATCH/pings" &
    pinger=$!
    STARTED+=("$pinger")
    another tartan >"$SCRATCH/first.json"
    another tartan-next >"$SCRATCH/next.json"
    for from in tartan:next tartan-next:first; do
        kubectl apply -f "$SCRATCH/${from#*:}.json" >/dev/null || fail "the API server refuses the second DaemonSet"
        rolled "$(jq -r .metadata.name "$SCRATCH/${from#*:}.json")"
        kubectl -n tartan-system delete daemonset "${from%:*}" --timeout 60s --request-timeout 0 >/dev/null || fail "${from%:*} is not deleted"
        all_go_on "after pods that took over from those of ${from%:*}"
    done
    wait "$pinger" || fail "pings.py"
    answered=$(sed -n 's/ received//p' "$SCRATCH/pings")
    [ "$answered" -gt 0 ] || fail "no ping was answered"
    measured_at_most "ms without answers while pods of both nodes took over, and back" "$LONGEST_TAKE_OVER" $(((PINGS - answered) * 50))
}

case $WAY in
manifests) ;;
helm) get_helm ;;
*) die "manifests or helm?" ;;
esac
make_release image
cluster down >/dev/null
cluster up --nodes 2
prepare_nodes
for NODE in $(nodes); do
    node_holds "$NODE" >"$SCRATCH/before.$NODE"
    # It sees each kind of thing that is to go.
    for KIND in 'd .* /opt/cni/bin' 'link eth0' 'route ' 'nft table' 'net.ipv4.ip_forward = 0'; do
        grep -q "^$KIND" "$SCRATCH/before.$NODE" || die "the census of $NODE does not see '$KIND'"
    done
done
equal "nodes are ready before the installation" no "$(all_ready && echo yes || echo no)"
say "install by $WAY"
install_tartan
rolled tartan
until_true "$PATIENCE" "every node is ready" all_ready && say "every node is ready"
web
spread '2 2'
pods_reach_each_other
services
no_problems
restarts_under_load
pods_reach_each_other
services
no_problems
say "remove"
remove_tartan
nodes_are_as_before
