# shellcheck shell=bash
# The stock flannel contract: a node's pods on the bridge cni0, made by Debian's `bridge` and `host-local` as flannel's
# CNI plugin delegates to them (flannel-io/cni-plugin, flannel.go and flannel_linux.go). All that the plugin knows of
# the node it reads from subnet.env. Sourced after test_case.sh or law.sh.

# stock ADD|DEL NODE POD: the container runtime's call of flannel's plugin, and its call of the delegate, with what it
# renders from its default list (kube-flannel's cni-conf.json: hairpinMode and isDefaultGateway). A subnet is written
# with the bridge's address in it, its first, and means the network (Go's net.ParseCIDR). Ours are two things:
# host-local's directory, and that it gives the addresses from 100 on, beside those of pods of tartan-cni.
stock() {
    (
        # shellcheck disable=SC1090
        . "$LAB_STATE/$2/run/flannel/subnet.env"
        jq -n --arg data "$LAB_STATE/$2/cni" --arg networks "${FLANNEL_NETWORK:-} ${FLANNEL_IPV6_NETWORK:-}" \
            --arg subnets "${FLANNEL_SUBNET:-} ${FLANNEL_IPV6_SUBNET:-}" --argjson mtu "$FLANNEL_MTU" \
            --argjson masquerade "$FLANNEL_IPMASQ" '
            {cniVersion: "0.3.1", name: "cbr0", type: "bridge", hairpinMode: true, isDefaultGateway: true,
             isGateway: true, ipMasq: ($masquerade | not), $mtu, ipam: {type: "host-local", dataDir: $data,
                 ranges: [($subnets / " " - [""])[] | capture("(?<net>.*)1/(?<bits>.*)")
                     | [{subnet: "\(.net)0/\(.bits)", rangeStart: "\(.net)100"}]],
                 routes: [($networks / " " - [""])[] | {dst: .}]}}'
    ) | ip netns exec "$PREFIX-$2" env CNI_COMMAND="$1" CNI_CONTAINERID="$PREFIX-$3" CNI_IFNAME=eth0 \
        CNI_NETNS="/var/run/netns/$PREFIX-$3" CNI_PATH=/usr/lib/cni /usr/lib/cni/bridge
}

# bridged_pod NODE: the pod `bridged`, for a law, beside the node's pods of tartan-cni.
bridged_pod() {
    local result
    undo no_bridged_pod "$1"
    make_namespace bridged
    result=$(stock ADD "$1" bridged) || die "the stock plugin on $1 says: $result"
    jq -r '"bridged '"$1"' \([.ips[].address | split("/")[0]] | join(" "))"' <<<"$result" >>"$LAB_STATE/pods"
}

no_bridged_pod() {
    local family
    sed -i '/^bridged /d' "$LAB_STATE/pods"
    stock DEL "$1" bridged || true
    ip -n "$PREFIX-$1" link delete cni0 || true
    ip netns delete "$PREFIX-bridged"
    rm -rf "$LAB_STATE/$1/cni"
    # What the plugin wrote there to masquerade.
    for family in ip ip6; do ip netns exec "$PREFIX-$1" nft delete table "$family" nat 2>/dev/null || true; done
}
