#!/usr/bin/env bash
# Kubernetes Services, by the rules of kube-proxy's iptables mode: every path to a pod, a Service or a node port
# works, by TCP and UDP, the server sees the right source, and no packet is dropped.
#
#   pod1, pod2 ── node1 tartan ══ underlay ══ node2: tartan, or a kernel node with flannel's rules ── pod3, pod4
#                                    └── client, no node of the cluster
#
# services.sh BACKEND PEER UNDERLAY FAMILIES MASQUERADE...: PEER is tartan or kernel-vxlan, FAMILIES v4, v6 or dual,
# inside and outside; each MASQUERADE, on or off, is one round of all paths. Of two nat chains of one priority packets
# meet the newer one first: kube-proxy's in the first round; in a later one with masquerade Tartan's, which a new start
# has written anew.
# case: vxlan tartan offload dual on off
# full: udp tartan offload dual off on workers=2
# full: vxlan tartan offload dual on off workers=2
# full: vxlan kernel-vxlan wire dual on off workers=2
# full: vxlan tartan offload v4 on off device=plain
# full: vxlan kernel-vxlan offload dual on off
# full: vxlan tartan wire dual on off
# full: vxlan tartan no-tunnel v4 off on off
# full: vxlan tartan offload v6 on off on
# full: udp tartan wire v4 on off on
# full: udp tartan no-tunnel v6 on off on
# full: udp kernel-vxlan offload dual on off
# full: vxlan kernel-vxlan wire dual off on
# full: vxlan kernel-vxlan no-tunnel v4 on off
# full: vxlan kernel-vxlan offload v6 on off on
# full: vxlan tartan offload dual on off workers=2 device-type=tap
# case: vxlan tartan offload v4 on off kernel-path=auto
# full: vxlan tartan offload v4 on off kernel-path=stateless
# full: vxlan tartan wire v4 on off kernel-path=auto
# full: vxlan tartan offload v4 off on off kernel-path=auto device-type=tap
# full: vxlan kernel-vxlan wire v4 on off kernel-path=stateless
# full: vxlan kernel-vxlan offload v4 on off kernel-path=auto
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
PEER=$2
UNDERLAY=$3
FAMILIES=$4
ROUNDS=("${@:5}")
# Where the lab's Services lead to; the nodes' own servers listen there too.
PORT=8080
# Whose an address is: pod1, node1, tunnel1 (that node's end of the overlay) or client.
declare -A OWNER
# What the lab says of its Services: SERVICE["pod1 address"], "pod1 port", "pod1 node_port", in this family.
declare -A SERVICE
# The paths of one round, a line each: client, address to be bound to, address, port, server, peers; what it is.
PATHS=()

options() {
    [ "$PEER" = tartan ] || echo --peer "$PEER"
}

tartan_nodes() {
    case $PEER in
    tartan) echo node1 node2 ;;
    kernel-vxlan) echo node1 ;;
    esac
}

owners() {
    local number pod addresses address
    for number in 1 2; do
        OWNER[192.0.2.$number]=node$number
        OWNER[2001:db8:192::$number]=node$number
        OWNER[10.244.$number.0]=tunnel$number
        OWNER[fd00:10:244:$number::]=tunnel$number
    done
    OWNER[192.0.2.251]=client
    OWNER[2001:db8:192::251]=client
    while read -r pod _ addresses; do
        for address in $addresses; do OWNER[$address]=$pod; done
    done <"$LAB_STATE/pods"
}

serve() {
    local name family addresses
    for name in pod1 pod2 pod3 pod4 node1 node2; do
        addresses=()
        for family in $(families "$FAMILIES"); do addresses+=("$(address "$name" "$family")"); done
        start_in "$name" python3 "$TOOLS/exchange.py" serve "$name" "$PORT" "${addresses[@]}"
        until_true 5 "$name serves" listens "$name" "${#addresses[@]}"
    done
}

listens() {
    [ "$(ip netns exec "$PREFIX-$1" ss -Hltn "sport = $PORT" | wc -l)" = "$2" ]
}

address() {
    case $1 in
    pod*) address_of "$1" "$2" ;;
    node*) underlay_of "$1" "$2" ;;
    esac
}

tunnel_of() {
    case $2 in
    4) echo "10.244.${1#node}.0" ;;
    6) echo "fd00:10:244:${1#node}::" ;;
    esac
}

learn_services() {
    local name key value
    while read -r name key value; do
        SERVICE["${name#lab/} $key"]=$value
    done < <(jq -r '.[] | .name as $name | to_entries[] | "\($name) \(.key) \(.value)"' "$LAB_STATE/services.$FAMILY")
}

# A target in words, as an address and a port: pod NAME, node NAME, service NAME, port NODE SERVICE, tunnel NODE SERVICE:
# the Service's node port at the node's address on the underlay, or at its tunnel address.
target() {
    local kind place name
    read -r kind place name <<<"$1"
    case $kind in
    pod | node) echo "$(address "$place" "$FAMILY") $PORT" ;;
    service) echo "${SERVICE["$place address"]} ${SERVICE["$place port"]}" ;;
    port) echo "$(address "$place" "$FAMILY") ${SERVICE["$name node_port"]}" ;;
    tunnel) echo "$(tunnel_of "$place" "$FAMILY") ${SERVICE["$name node_port"]}" ;;
    esac
}

# path CLIENT BOUND TARGET SERVER PEERS: the client, bound to the address of BOUND unless that is "any", is to be
# answered by the server, which sees one of PEERS.
path() {
    local from=any what="$1 to $3"
    if [ "$2" != any ]; then
        from=$(address "$2" "$FAMILY")
        what="$1, bound, to $3"
    fi
    PATHS+=("$1|$from $(target "$3")|$4|$5|IPv$FAMILY, $what")
}

# Walks the paths noted, those of one client after the other.
walk() {
    local client server seen what protocol name peer found clients
    clients=$(printf '%s\n' "${PATHS[@]}" | cut -d '|' -f 1 | sort -u)
    for client in $clients; do
        printf '%s\n' "${PATHS[@]}" | grep "^$client|" >"$SCRATCH/paths"
        cut -d '|' -f 2 "$SCRATCH/paths" | ip netns exec "$PREFIX-$client" python3 "$TOOLS/exchange.py" ask >"$SCRATCH/answers"
        while IFS='|' read -r _ _ server seen what; do
            found=
            for _ in tcp udp; do
                read -r protocol name peer <&3 || true
                peer=${OWNER[${peer:-none}]:-$peer}
                if [[ " $seen " == *" $peer "* ]]; then peer=${seen/ / or }; fi
                found+="${found:+, }$protocol: $name saw $peer"
            done
            seen=${seen/ / or }
            equal "$what" "tcp: $server saw $seen, udp: $server saw $seen" "$found"
        done <"$SCRATCH/paths" 3<"$SCRATCH/answers"
    done
    say "IPv$FAMILY: ${#PATHS[@]} paths"
    PATHS=()
}

# A Service with every pod as endpoint: all connections are answered, and not all by one.
balanced() {
    local answers
    for _ in {1..12}; do echo "any $(target "service all")"; done |
        ip netns exec "$PREFIX-$1" python3 "$TOOLS/exchange.py" ask >"$SCRATCH/answers"
    answers=$(cut -d ' ' -f 2 "$SCRATCH/answers" | sort | uniq -c | awk '{ print $2, $1 }')
    equal "IPv$FAMILY, $1 to service all: answers" 24 "$(grep -c ' pod[1-4] ' "$SCRATCH/answers")"
    [ "$(wc -l <<<"$answers")" -gt 1 ] || fail "IPv$FAMILY, $1 to service all: one pod answers everything: $answers"
}

# paths MASQUERADE HERE THERE POD NEIGHBOUR REMOTE: all paths that begin at the node HERE or its pod, whose neighbour
# is on the same node and whose remote is on THERE; and those of a client from outside to HERE.
paths() {
    local masquerade=$1 here=$2 there=$3 pod=$4 neighbour=$5 remote=$6 outside bound host probe
    local tunnel=tunnel${here#node} own="$here tunnel${here#node}" others="$there tunnel${there#node}"
    # The address of a pod that a host outside the pods sees, and a remote pod of a host process bound to the node's address.
    case $masquerade in
    on) outside=$here ;;
    off) outside=$pod ;;
    esac

    path "$pod" any "pod $remote" "$remote" "$pod"
    path "$pod" any "service $neighbour" "$neighbour" "$pod"
    path "$pod" any "service $remote" "$remote" "$pod"
    # To itself: any address of the node will do, its own would be answered past the node.
    path "$pod" any "service $pod" "$pod" "$own"
    path "$pod" any "node $here" "$here" "$pod"
    path "$pod" any "node $there" "$there" "$outside"
    # A Service that ends at a pod with the host's network, as Kubernetes' own does.
    path "$pod" any "service $here" "$here" "$pod"
    path "$pod" any "service $there" "$there" "$outside"
    path "$pod" any "port $here $pod" "$pod" "$own"
    path "$pod" any "port $here $remote" "$remote" "$tunnel"
    path "$pod" any "port $here $neighbour-local" "$neighbour" "$pod"
    path "$pod" any "port $there $remote" "$remote" "$others"
    path "$pod" any "port $there $neighbour" "$neighbour" "tunnel${there#node}"
    path "$pod" any "port $there $pod" "$pod" "tunnel${there#node}"
    path "$pod" any "port $there $remote-local" "$remote" "$outside"
    # The tunnel address is one of the cluster network, so kube-proxy takes the pod for a client inside: it chooses among
    # all endpoints, and leaves the source alone. From the pod's own node the endpoint would answer past the translation.
    path "$pod" any "tunnel $there $remote" "$remote" "$others"
    path "$pod" any "tunnel $there $remote-local" "$remote" "$pod"
    if [ "$masquerade" = on ]; then
        path "$pod" any "tunnel $there $neighbour-local" "$neighbour" "tunnel${there#node}"
        path "$pod" any "tunnel $there $pod-local" "$pod" "tunnel${there#node}"
    fi

    # A process of the host, or a pod with the host's network: unbound, then bound to the node's address.
    for bound in any "$here"; do
        host=$tunnel probe=$own
        if [ "$bound" != any ]; then probe=$here; fi
        if [ "$bound" != any ] && [ "$masquerade" = off ]; then host=$here; fi
        path "$here" "$bound" "pod $pod" "$pod" "$probe"
        path "$here" "$bound" "pod $remote" "$remote" "$host"
        path "$here" "$bound" "service $pod" "$pod" "$own"
        path "$here" "$bound" "service $remote" "$remote" "$tunnel"
        path "$here" "$bound" "service $there" "$there" "$here"
        path "$here" "$bound" "port $here $remote" "$remote" "$tunnel"
        path "$here" "$bound" "port $there $remote" "$remote" "$others"
    done

    path client any "port $here $pod" "$pod" "$own"
    path client any "port $here $remote" "$remote" "$tunnel"
    path client any "port $here $there" "$there" "$here"
    # externalTrafficPolicy Local keeps the client's address.
    path client any "port $here $pod-local" "$pod" client
}

# With masquerade everything is answered by the way it came, and the strictest rp_filter changes nothing. Without it
# the answer of a node to a pod comes by the overlay, that of a pod to a node past it.
strictness() {
    local node value=1
    [ "$1" = on ] || value=0
    for node in node1 node2; do
        ip netns exec "$PREFIX-$node" sysctl -qw "net.ipv4.conf.all.rp_filter=$value"
    done
}

# Nothing dropped, by Tartan for whatever reason or by the kernel at its sockets and its device.
no_drops() {
    equal "drops on $1" '{}' "$(agent_json "$1" drops | jq -c '
        [(.workers[] | .outbound, .inbound | .dropped | to_entries[]),
         (.kernel[] | select(.counter | test("drop")) | {key: "\(.place) \(.counter)", value: .count})]
        | map(select(.value != 0)) | group_by(.key) | map({key: .[0].key, value: (map(.value) | add)}) | from_entries')"
}

say "services: backend $BACKEND, peer $PEER, underlay $UNDERLAY, $FAMILIES"
mapfile -t OPTIONS < <(options | tr ' ' '\n')
lab_up --backend "$BACKEND" --underlay "$UNDERLAY" --inside "$FAMILIES" --outside "$FAMILIES" --pods 2 "${OPTIONS[@]}"
owners
serve
for ROUND in "${ROUNDS[@]}"; do
    lab services --masquerade "$ROUND"
    strictness "$ROUND"
    for FAMILY in $(families "$FAMILIES"); do
        learn_services
        paths "$ROUND" node1 node2 pod1 pod2 pod3
        paths "$ROUND" node2 node1 pod3 pod4 pod1
        walk
        balanced pod1
        balanced node2
    done
    for NODE in $(tartan_nodes); do
        law_one "$NODE"
        no_drops "$NODE"
        equal "problems of $NODE" '[]' "$(agent_json "$NODE" status | jq -c .problems)"
    done
done
