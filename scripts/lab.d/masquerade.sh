# shellcheck shell=bash
# Whether pods meet the outside as their node: Tartan's key `masquerade`, and on any other node what flanneld writes
# with and without --ip-masq. Sourced by scripts/lab.

masquerade_only() {
    local wanted
    parse_prefix "$@"
    [ ${#REST[@]} -eq 1 ] || wrong "masquerade is on or off: scripts/lab masquerade on"
    wanted=$(one_of masquerade "${REST[0]}" on off)
    load_settings
    need_tools iptables-nft-restore ip6tables-nft-restore
    masquerade "$wanted"
}

# $1 on or off. A Tartan node reads it again; any other gets or loses flannel's rules.
masquerade() {
    local node family
    for node in $(node_numbers); do
        case $(node_kind "$node") in
        tartan) node_masquerade "$node" "$1" ;;
        kernel-vxlan | direct) for family in $(inside); do flannel_rules "$node" "$family" "$1"; done ;;
        esac
    done
}

# Without the file it is on. What an agent masquerades is the chain postrouting of its table.
node_masquerade() {
    local node=$1 file=$STATE/node$1/etc/tartan/tartan.toml wait now
    for ((wait = 0; wait < 200; wait++)); do
        now=off
        if ip netns exec "$PREFIX-node$node" nft list chain inet tartan postrouting >/dev/null 2>&1; then now=on; fi
        if [ "$now" = "$2" ]; then return; fi
        if [ "$wait" = 0 ]; then
            mkdir -p "$(dirname "$file")"
            if [ "$2" = on ]; then rm "$file"; else echo "masquerade = false" >"$file"; fi
            kill -HUP "$(cat "$STATE/node$node/pid")"
        fi
        sleep 0.1
    done
    die "node$node does not turn masquerade $2: see $STATE/node$node/log"
}

# What flanneld writes in iptables mode (pkg/trafficmngr/iptables/iptables.go): the forward rules always, the
# others with --ip-masq.
flannel_rules() {
    local node=$1 family=$2 on=$3 first=1 network subnet groups=224.0.0.0/4 program=iptables-nft space=$PREFIX-node$1
    network=$(cluster_network "$family")
    subnet=$(pod_subnet "$node" "$family")
    [ "$family" = 4 ] || groups=ff00::/8
    if [ "$family" = 6 ]; then program=ip6tables-nft; fi
    if grep -q -- '-j FLANNEL-POSTRTG$' <<<"$(ip netns exec "$space" "$program" -t nat -S POSTROUTING)"; then first=; fi
    {
        echo '*filter'
        echo ':FLANNEL-FWD - [0:0]'
        if [ -n "$first" ]; then echo '-A FORWARD -j FLANNEL-FWD'; fi
        echo "-A FLANNEL-FWD -s $network -j ACCEPT"
        echo "-A FLANNEL-FWD -d $network -j ACCEPT"
        echo COMMIT
        echo '*nat'
        echo ':FLANNEL-POSTRTG - [0:0]'
        if [ -n "$first" ]; then echo '-A POSTROUTING -j FLANNEL-POSTRTG'; fi
        if [ "$on" = on ]; then
            echo '-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN'
            echo "-A FLANNEL-POSTRTG -s $subnet -d $network -j RETURN"
            echo "-A FLANNEL-POSTRTG -s $network -d $subnet -j RETURN"
            echo "-A FLANNEL-POSTRTG ! -s $network -d $subnet -j RETURN"
            echo "-A FLANNEL-POSTRTG -s $network ! -d $groups -j MASQUERADE --random-fully"
            echo "-A FLANNEL-POSTRTG ! -s $network -d $network -j MASQUERADE --random-fully"
        fi
        echo COMMIT
    } | ip netns exec "$space" "$program-restore" --noflush
}
