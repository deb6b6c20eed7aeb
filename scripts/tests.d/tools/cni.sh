# shellcheck shell=bash
# Pods beside those of a lab, and the calls that a container runtime makes for them. Sourced after law.sh.

# new_pods NAME...: network namespaces with no interface, until the law ends.
new_pods() {
    local name
    for name; do
        make_namespace "$name"
        undo end_pod "$name"
        [ "$INSIDE" != v4 ] || in_ns "$name" sysctl -qw net.ipv6.conf.{all,default}.disable_ipv6=1
    done
}

end_pod() {
    [ ! -e "/run/netns/$PREFIX-$1" ] || ip netns delete "$PREFIX-$1"
}

# call VERB NODE POD [KEYS [IFNAME]]: the plugin as a runtime calls it, with further KEYS of the configuration, a JSON
# object. IN runs it, if not in_ns, and PROGRAM is it, if not the first of PATH.
call() {
    local keys=${4:-} ifname=${5:-eth0}
    jq -nc --arg root "$LAB_STATE/$2" --argjson keys "${keys:-"{}"}" \
        '{cniVersion: "1.0.0", name: "tartan", type: "tartan-cni", $root} + $keys' |
        "${IN:-in_ns}" "$2" env CNI_COMMAND="$1" CNI_CONTAINERID="$PREFIX-$3" CNI_IFNAME="$ifname" \
            CNI_NETNS="/run/netns/$PREFIX-$3" CNI_PATH="${CNI_PATH:-/usr/lib/cni}" "${PROGRAM:-tartan-cni}"
}

# attach NODE POD [KEYS [IFNAME]]: until the law ends; the result is in $SCRATCH/POD.IFNAME.
attach() {
    undo call DEL "$1" "$2" "${3:-}" "${4:-eth0}"
    call ADD "$@" >"$SCRATCH/$2.${4:-eth0}" || die "ADD of $2: $(cat "$SCRATCH/$2.${4:-eth0}")"
}

# given POD [IFNAME]: its address, the first of several.
given() {
    jq -r '.ips[0].address | split("/")[0]' "$SCRATCH/$1.${2:-eth0}"
}

# pings FROM ADDRESS [COUNT]: of five requests COUNT, or all, are answered.
pings() {
    equal "ping $1 to $2" "${3:-5} received" "$(in_ns "$1" python3 "$TOOLS/pings.py" "$2" 5 0.02 2)"
}

# row NODE POD [IFNAME]: what the agent reports of an attachment.
row() {
    agent_json "$1" pods | jq -c --arg container "$PREFIX-$2" --arg ifname "${3:-eth0}" \
        '.pods[] | select(.container == $container and .ifname == $ifname)'
}
