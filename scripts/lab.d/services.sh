# shellcheck shell=bash
# Kubernetes Services in a lab: on every node the rules that kube-proxy would keep there (kube_proxy.py), one
# host outside the cluster, and masquerade.sh. Sourced by scripts/lab.
#
#   PREFIX-client   192.0.2.251   2001:db8:192::251    no node; the nodes' default route leads to it
#
# The Services are those of plan() in kube_proxy.py, each from port 80 to port 8080, by TCP and by UDP. Their external
# addresses are 203.0.113.N and 2001:db8:f00::N, to which the client's route leads by the first node, and
# 203.0.113.(64+N) and 2001:db8:f00:1::N, by the last one. STATE/services.4 and services.6 have them all as JSON.

services() {
    local family networks=() kube_proxy=iptables masquerade=on moved=0 off=
    parse_prefix "$@"
    set -- "${REST[@]}"
    while [ $# -gt 0 ]; do
        case $1 in
        --moved) moved=1 ;;
        --off) off=1 ;;
        --masquerade | --kube-proxy)
            [ $# -ge 2 ] || wrong "$1 needs a value"
            if [ "$1" = --masquerade ]; then
                masquerade=$(one_of "$1" "$2" on off)
            else
                kube_proxy=$(one_of "$1" "$2" iptables nftables)
            fi
            shift
            ;;
        *) wrong "services does not know '$1': see 'scripts/lab help'" ;;
        esac
        shift
    done
    load_settings
    if [ -n "$off" ]; then
        services_off
        return
    fi
    need_tools iptables-nft-restore ip6tables-nft-restore nft python3 jq conntrack
    # A node port needs a family that both pods and nodes have.
    for family in $(inside); do
        if has "$family" "$(outside)"; then networks+=("$family=$(cluster_network "$family")"); fi
    done
    [ ${#networks[@]} != 0 ] || die "a Service of a family needs pods and nodes of it:" \
        "the lab '$PREFIX' has $INSIDE inside and $OUTSIDE outside"
    # The digits of a pod's number in an address.
    [ $((NODES * PODS)) -le 250 ] || die "at most 250 pods can have a Service each, not $((NODES * PODS))"
    [ -e "/run/netns/$PREFIX-client" ] || underlay_host client 251
    masquerade "$masquerade"
    python3 "$LAB_HOME/lab.d/kube_proxy.py" "$STATE" "$kube_proxy" "$moved" "${networks[@]}" ||
        die "the rules of kube-proxy cannot be written"
    echo "lab '$PREFIX': Services, masquerade $masquerade, kube-proxy's $kube_proxy mode"
    for family in "${networks[@]%%=*}"; do
        printf '  %-12s %s, outside the cluster\n' "$PREFIX-client" "$(underlay_address 251 "$family")"
        jq -r '.[] | [.name[4:], .address, .port, if .node_port > 0 then .node_port else "-" end,
            if .local then "Local" else "Cluster" end, ([.endpoints[].address] | join(" "))] | @tsv' \
            "$STATE/services.$family" | awk -F '\t' '{
                printf "    %-12s %-18s port %s, node port %-6s policy %-8s to %s\n", $1, $2, $3, $4 ",", $5, $6 }'
    done
}

# As if there had never been any. A table is made before it goes, so that none is missing.
services_off() {
    local node family table tables=''
    for table in {ip,ip6}\ {kube-proxy,nat,filter}; do tables+="table $table; delete table $table; "; done
    masquerade on
    for node in $(node_numbers); do
        ip netns exec "$PREFIX-node$node" nft "$tables"
        for family in 4 6; do ip -n "$PREFIX-node$node" "-$family" route delete default 2>/dev/null || true; done
    done
    if [ -e "/run/netns/$PREFIX-client" ]; then
        ip -n "$PREFIX-net" link delete client
        ip netns delete "$PREFIX-client"
        sed -i "/^$PREFIX-client /d" "$STATE/namespaces"
    fi
    rm -f "$STATE"/services.*
}
