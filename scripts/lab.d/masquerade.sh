# shellcheck shell=bash
# Whether pods meet the outside as their node: Tartan's key `masquerade`, and on any other node what flanneld writes
# with and without --ip-masq. Sourced by scripts/lab.

masquerade_only() {
    parse_prefix "$@"
    one_of masquerade "${REST[*]}" on off >/dev/null
    load_settings
    need_tools iptables-nft-restore ip6tables-nft-restore
    masquerade "${REST[0]}"
}

# $1 on or off. A Tartan node reads its file again, without which it is on; any other gets or loses flannel's rules.
masquerade() {
    local node family file wait now
    for node in $(node_numbers); do
        if [ "$(node_kind "$node")" != tartan ]; then
            for family in $(inside); do flannel_rules "$node" "$family" "$1"; done
            continue
        fi
        file=$STATE/node$node/etc/tartan/tartan.toml
        for ((wait = 0; wait < 200; wait++)); do
            # What an agent masquerades is the chain postrouting of its table.
            now=off
            if ip netns exec "$PREFIX-node$node" nft list chain inet tartan postrouting >/dev/null 2>&1; then now=on; fi
            if [ "$now" = "$1" ]; then continue 2; fi
            if [ "$wait" = 0 ]; then
                mkdir -p "$(dirname "$file")"
                if [ "$1" = on ]; then rm "$file"; else echo "masquerade = false" >"$file"; fi
                kill -HUP "$(cat "$STATE/node$node/pid")"
            fi
            sleep 0.1
        done
        die "node$node does not turn masquerade $1: see $STATE/node$node/log"
    done
}

# What flanneld writes in iptables mode (pkg/trafficmngr/iptables/iptables.go): the forward rules always, the
# others with --ip-masq. $1 node, $2 family, $3 on or off
flannel_rules() {
    local network subnet groups=224.0.0.0/4 program=iptables-nft space=$PREFIX-node$1
    local jump='-A' to=FLANNEL-POSTRTG random=--random-fully
    network=$(cluster_network "$2")
    subnet=$(pod_subnet "$1" "$2")
    if [ "$2" = 6 ]; then groups=ff00::/8 program=ip6tables-nft; fi
    # The jumps are there once.
    if grep -q -- "-j $to\$" <<<"$(ip netns exec "$space" "$program" -t nat -S POSTROUTING)"; then jump='#'; fi
    ip netns exec "$space" "$program-restore" --noflush <<RULES
*filter
:FLANNEL-FWD - [0:0]
$jump FORWARD -j FLANNEL-FWD
-A FLANNEL-FWD -s $network -j ACCEPT
-A FLANNEL-FWD -d $network -j ACCEPT
COMMIT
*nat
:$to - [0:0]
$jump POSTROUTING -j $to
$(if [ "$3" = on ]; then printf "\n-A $to %s" "-m mark --mark 0x4000/0x4000 -j RETURN" \
        "-s $subnet -d $network -j RETURN" \
        "-s $network -d $subnet -j RETURN" "! -s $network -d $subnet -j RETURN" \
        "-s $network ! -d $groups -j MASQUERADE $random" "! -s $network -d $network -j MASQUERADE $random"; fi)
COMMIT
RULES
}
