# shellcheck shell=bash
# Kubernetes Services in a lab: on every node the rules that kube-proxy would keep there (kube_proxy.py), one host outside the
# cluster, and masquerade.sh. Sourced by scripts/lab.
#
#   PREFIX-client   192.0.2.251   2001:db8:192::251    no node; the nodes' default route leads to it
#
#   name           address                          node port   leads to
#     podK          10.96.0.K    fd00:10:96::K        30000+K   podK
#     podK-local    10.96.1.K    fd00:10:96::1:K      31000+K   podK, with externalTrafficPolicy Local
#     all           10.96.2.1    fd00:10:96::2:1      32001     every pod
#     nodeI         10.96.3.I    fd00:10:96::3:I      32100+I   nodeI itself, as a pod with the host's network
#
# A is the first pod of the first node, B that of the last one:
#     inner         10.96.4.1    fd00:10:96::4:1                A and B, with internalTrafficPolicy Local
#     inner-far     10.96.4.2    fd00:10:96::4:2                B, with internalTrafficPolicy Local
#     sticky        10.96.4.3    fd00:10:96::4:3      32303     every pod, with affinity ClientIP
#     outer         10.96.4.4    fd00:10:96::4:4                B, also at its external IPs
#     outer-local   10.96.4.5    fd00:10:96::4:5                A, the same, with externalTrafficPolicy Local
#     ranged        10.96.4.6    fd00:10:96::4:6                A, also at its load balancer's for client and pods alone
#     ranged-none   10.96.4.7    fd00:10:96::4:7                A, the same for somebody else alone
#     ranged-local  10.96.4.8    fd00:10:96::4:8                B, as ranged, with externalTrafficPolicy Local
#     moving        10.96.4.9    fd00:10:96::4:9      32309     A, after `services --moved` B
#     nobody        10.96.4.10   fd00:10:96::4:10     32310     no endpoint
#
# Each from port 80 to port 8080, by TCP and by UDP. The external IPs and load balancers' of 10.96.4.N are 203.0.113.N
# and 2001:db8:f00::N, to which the client's route leads by the first node, and 203.0.113.(64+N) and
# 2001:db8:f00:1::N, by the last one. STATE/services.4 and services.6 have them all as JSON.

CLIENT=251
# The digits of K in an address.
MOST_SERVED_PODS=250

services() {
    local node family process processes=()
    parse_services "$@"
    load_settings
    if [ -n "$SERVICES_OFF" ]; then
        services_off
        return
    fi
    need_tools iptables-nft-restore ip6tables-nft-restore nft python3 jq conntrack
    [ -n "$(served)" ] || die "a Service of a family needs pods and nodes of it: the lab '$PREFIX' has $INSIDE inside and $OUTSIDE outside"
    [ $((NODES * PODS)) -le "$MOST_SERVED_PODS" ] || die "at most $MOST_SERVED_PODS pods can have a Service each, not $((NODES * PODS))"
    [ -e "/run/netns/$PREFIX-client" ] || underlay_host client "$CLIENT"
    masquerade "$MASQUERADE"
    for family in $(served); do
        service_plan "$family" >"$STATE/services.$family"
        for node in $(node_numbers); do
            kube_proxy "$node" "$family" &
            processes+=("$!")
        done
        client_routes "$family"
    done
    for process in "${processes[@]}"; do wait "$process" || die "the rules of kube-proxy cannot be written"; done
    service_list
}

# As if there had never been any.
services_off() {
    local node table
    masquerade on
    for node in $(node_numbers); do
        for table in {ip,ip6}\ {kube-proxy,nat,filter}; do
            ip netns exec "$PREFIX-node$node" nft "delete table $table" 2>/dev/null || true
        done
        ip -n "$PREFIX-node$node" -4 route delete default 2>/dev/null || true
        ip -n "$PREFIX-node$node" -6 route delete default 2>/dev/null || true
    done
    if [ -e "/run/netns/$PREFIX-client" ]; then
        ip -n "$PREFIX-net" link delete client
        ip netns delete "$PREFIX-client"
        sed -i "/^$PREFIX-client /d" "$STATE/namespaces"
    fi
    rm -f "$STATE"/services.*
}

# The client reaches ClusterIPs by the first node, as a static route would have it, and external IPs by both ends.
client_routes() {
    local networks=(10.96.0.0/16 203.0.113.0/26 203.0.113.64/26) number node
    [ "$1" = 4 ] || networks=(fd00:10:96::/108 2001:db8:f00::/64 2001:db8:f00:1::/64)
    for number in 0 1 2; do
        node=$((number == 2 ? NODES : 1))
        ip -n "$PREFIX-client" "-$1" route replace "${networks[number]}" via "$(underlay_address "$node" "$1")" dev eth0
    done
}

parse_services() {
    MASQUERADE=on
    KUBE_PROXY=iptables
    MOVED=
    SERVICES_OFF=
    parse_prefix "$@"
    set -- "${REST[@]}"
    while [ $# -gt 0 ]; do
        case $1 in
        --moved) MOVED=1 ;;
        --off) SERVICES_OFF=1 ;;
        --masquerade | --kube-proxy)
            [ $# -ge 2 ] || wrong "$1 needs a value"
            case $1 in
            --masquerade) MASQUERADE=$(one_of "$1" "$2" on off) ;;
            --kube-proxy) KUBE_PROXY=$(one_of "$1" "$2" iptables nftables) ;;
            esac
            shift
            ;;
        *) wrong "services does not know '$1': see 'scripts/lab help'" ;;
        esac
        shift
    done
}

# The families that both pods and nodes have: a node port needs both.
served() {
    local family
    for family in $(inside); do
        if has "$family" "$(outside)"; then echo "$family"; fi
    done
}

service_plan() {
    jq -nR --argjson six "$((${1} == 6))" --argjson moved "${MOVED:-0}" --arg last "node$NODES" \
        --arg client "$(underlay_address "$CLIENT" "$1")/${HOST_BITS[$1]}" --arg pods "$(cluster_network "$1")" \
        --rawfile nodes "$STATE/nodes" '
        def address($group; $number):
            if $six == 0 then "10.96.\($group).\($number)"
            elif $group == 0 then "fd00:10:96::\($number)"
            else "fd00:10:96::\($group):\($number)" end;
        def service($name; $group; $number; $node_port; $local; $endpoints):
            {name: "lab/\($name)", address: address($group; $number), port: 80, node_port: $node_port,
             local: $local, endpoints: $endpoints};
        def endpoint($node; $addresses):
            {address: ($addresses | map(select(contains(":") == ($six == 1)))[0]), port: 8080, node: $node};
        # The addresses outside the cluster of Service $number of group 4.
        def outside($number):
            if $six == 0 then ["203.0.113.\($number)", "203.0.113.\(64 + $number)"]
            else ["2001:db8:f00::\($number)", "2001:db8:f00:1::\($number)"] end;
        def somebody: if $six == 0 then "198.51.100.0/24" else "2001:db8:51::/64" end;
        [inputs | split(" ") | {pod: .[0]} + endpoint(.[1]; .[2:])]
        | (map(select(.node == "node1"))[0]) as $a
        | (map(select(.node == $last))[0]) as $b
        | [ (.[] | (.pod[3:] | tonumber) as $number
                | service(.pod; 0; $number; 30000 + $number; false; [.]),
                  service("\(.pod)-local"; 1; $number; 31000 + $number; true; [.])),
            service("all"; 2; 1; 32001; false; .),
            ($nodes | split("\n")[] | select(. != "") | split(" ")
                | (.[0][4:] | tonumber) as $number
                | service(.[0]; 3; $number; 32100 + $number; false; [endpoint(.[0]; [.[2], .[4]])])),
            service("inner"; 4; 1; 0; false; [$a, $b | values]) + {inside_local: true},
            service("inner-far"; 4; 2; 0; false; [$b | values]) + {inside_local: true},
            service("sticky"; 4; 3; 32303; false; .) + {affinity: true},
            service("outer"; 4; 4; 0; false; [$b | values]) + {external: outside(4)},
            service("outer-local"; 4; 5; 0; true; [$a | values]) + {external: outside(5)},
            service("ranged"; 4; 6; 0; false; [$a | values]) + {balancer: outside(6), ranges: [$client, $pods]},
            service("ranged-none"; 4; 7; 0; false; [$a | values]) + {balancer: outside(7), ranges: [somebody]},
            service("ranged-local"; 4; 8; 0; true; [$b | values]) + {balancer: outside(8), ranges: [$client, $pods]},
            service("moving"; 4; 9; 32309; false; [if $moved == 1 then $b else $a end | values]),
            service("nobody"; 4; 10; 32310; false; []) ]' "$STATE/pods"
}

# $1 node, $2 family
kube_proxy() {
    ip -n "$PREFIX-node$1" "-$2" route replace default via "$(underlay_address "$CLIENT" "$2")" dev eth0
    ip netns exec "$PREFIX-node$1" python3 "$LAB_HOME/lab.d/kube_proxy.py" "$KUBE_PROXY" "node$1" "$(underlay_address "$1" "$2")" \
        "$(cluster_network "$2")" "$(service_network "$2")" <"$STATE/services.$2"
    # kube-proxy forgets the UDP flows that lead to an endpoint that is none any more (pkg/proxy/conntrack/cleanup.go). Here it is
    # all flows, at once: to delete one after the other ends early when one has gone meanwhile.
    if [ -n "$MOVED" ]; then ip netns exec "$PREFIX-node$1" conntrack -F >/dev/null 2>&1; fi
}

service_network() {
    case $1 in
    4) echo 10.96.0.0/16 ;;
    6) echo fd00:10:96::/108 ;;
    esac
}

service_list() {
    local family
    echo "lab '$PREFIX': Services, masquerade $MASQUERADE, kube-proxy's $KUBE_PROXY mode"
    for family in $(served); do
        printf '  %-12s %s, outside the cluster\n' "$PREFIX-client" "$(underlay_address "$CLIENT" "$family")"
        jq -r '.[] | "\(.name[4:])\t\(.address)\t\(.port)\t\(.node_port)\t\(if .local then "Local" else "Cluster" end)\t\(
            [.endpoints[].address] | join(" "))"' "$STATE/services.$family" |
            awk -F '\t' '{ printf "    %-12s %-18s port %s, node port %-5s policy %-8s to %s\n", $1, $2, $3, $4 ? $4 "," : "-,", $5, $6 }'
    done
}
