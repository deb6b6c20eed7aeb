# shellcheck shell=bash
# Kubernetes Services in a lab: on every node the rules that kube-proxy would keep there (kube_proxy.py), one
# host outside the cluster, and masquerade.sh. Sourced by scripts/lab.
#
#   PREFIX-client   192.0.2.251   2001:db8:192::251    no node; the nodes' default route leads to it
#
#   name         address                          node port   leads to
#     podK        10.96.0.K    fd00:10:96::K        30000+K   podK
#     podK-local  10.96.1.K    fd00:10:96::1:K      31000+K   podK, with externalTrafficPolicy Local
#     all         10.96.2.1    fd00:10:96::2:1      32001     every pod
#     nodeI       10.96.3.I    fd00:10:96::3:I      32100+I   nodeI itself, as a pod with the host's network
#
# Each from port 80 to port 8080, by TCP and by UDP. STATE/services.4 and services.6 have them as JSON.

CLIENT=251
# The digits of K in an address.
MOST_SERVED_PODS=250

services() {
    local node family
    parse_services "$@"
    load_settings
    need_tools iptables-nft-restore ip6tables-nft-restore python3 jq
    [ -n "$(served)" ] || die "a Service of a family needs pods and nodes of it: the lab '$PREFIX' has $INSIDE inside and $OUTSIDE outside"
    [ $((NODES * PODS)) -le "$MOST_SERVED_PODS" ] || die "at most $MOST_SERVED_PODS pods can have a Service each, not $((NODES * PODS))"
    [ -e "/run/netns/$PREFIX-client" ] || underlay_host client "$CLIENT"
    masquerade "$MASQUERADE"
    for family in $(served); do
        service_plan "$family" >"$STATE/services.$family"
        for node in $(node_numbers); do
            ip -n "$PREFIX-node$node" "-$family" route replace default via "$(underlay_address "$CLIENT" "$family")" dev eth0
            kube_proxy "$node" "$family"
        done
    done
    service_list
}

parse_services() {
    MASQUERADE=on
    parse_prefix "$@"
    set -- "${REST[@]}"
    while [ $# -gt 0 ]; do
        [ "$1" = --masquerade ] || wrong "services does not know '$1': see 'scripts/lab help'"
        [ $# -ge 2 ] || wrong "$1 needs a value"
        MASQUERADE=$(one_of "$1" "$2" on off)
        shift 2
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
    jq -nR --argjson six "$((${1} == 6))" --rawfile nodes "$STATE/nodes" '
        def address($group; $number):
            if $six == 0 then "10.96.\($group).\($number)"
            elif $group == 0 then "fd00:10:96::\($number)"
            else "fd00:10:96::\($group):\($number)" end;
        def service($name; $group; $number; $node_port; $local; $endpoints):
            {name: "lab/\($name)", address: address($group; $number), port: 80, node_port: $node_port,
             local: $local, endpoints: $endpoints};
        def endpoint($node; $addresses):
            {address: ($addresses | map(select(contains(":") == ($six == 1)))[0]), port: 8080, node: $node};
        [inputs | split(" ") | {pod: .[0]} + endpoint(.[1]; .[2:])]
        | [ (.[] | (.pod[3:] | tonumber) as $number
                | service(.pod; 0; $number; 30000 + $number; false; [.]),
                  service("\(.pod)-local"; 1; $number; 31000 + $number; true; [.])),
            service("all"; 2; 1; 32001; false; .),
            ($nodes | split("\n")[] | select(. != "") | split(" ")
                | (.[0][4:] | tonumber) as $number
                | service(.[0]; 3; $number; 32100 + $number; false; [endpoint(.[0]; [.[2], .[4]])])) ]' "$STATE/pods"
}

# $1 node, $2 family
kube_proxy() {
    local order=AGAIN
    hooked "$1" "$2" KUBE-POSTROUTING || order=FIRST
    python3 "$LAB_HOME/lab.d/kube_proxy.py" "$order" "node$1" "$(cluster_network "$2")" <"$STATE/services.$2" |
        ip netns exec "$PREFIX-node$1" "$(restore "$2")" --noflush
}

# The program that writes iptables rules of a family, as nftables ones.
restore() {
    case $1 in
    4) echo iptables-nft-restore ;;
    6) echo ip6tables-nft-restore ;;
    esac
}

# $1 node, $2 family, $3 chain: whether packets come to it already.
hooked() {
    local program=iptables-nft
    [ "$2" = 4 ] || program=ip6tables-nft
    grep -q -- "-j $3\$" <<<"$(ip netns exec "$PREFIX-node$1" "$program" -t nat -S POSTROUTING)"
}

service_list() {
    local family
    echo "lab '$PREFIX': Services, masquerade $MASQUERADE"
    for family in $(served); do
        printf '  %-12s %s, outside the cluster\n' "$PREFIX-client" "$(underlay_address "$CLIENT" "$family")"
        jq -r '.[] | "\(.name[4:])\t\(.address)\t\(.port)\t\(.node_port)\t\(if .local then "Local" else "Cluster" end)\t\(
            [.endpoints[].address] | join(" "))"' "$STATE/services.$family" |
            awk -F '\t' '{ printf "    %-12s %-18s port %s, node port %s, policy %-8s to %s\n", $1, $2, $3, $4, $5, $6 }'
    done
}
