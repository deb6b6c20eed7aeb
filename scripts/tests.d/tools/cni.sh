# shellcheck shell=bash
# Pods beside those of a lab, and the calls that a container runtime makes for them. Sourced after law.sh.

# new_pods NAME...: network namespaces with no interface, until the law ends.
new_pods() {
    local name
    for name; do
        make_namespace "$name"
        undo ip netns delete "$PREFIX-$name"
        [ "$INSIDE" != v4 ] || in_ns "$name" sysctl -qw net.ipv6.conf.{all,default}.disable_ipv6=1
    done
}

# call VERB NODE POD [KEYS]: the plugin as a runtime calls it, with further KEYS of the configuration, a JSON object.
call() {
    jq -nc --arg root "$LAB_STATE/$2" --argjson keys "${4:-"{}"}" \
        '{cniVersion: "1.0.0", name: "tartan", type: "tartan-cni", $root} + $keys' |
        in_ns "$2" env CNI_COMMAND="$1" CNI_CONTAINERID="$PREFIX-$3" CNI_IFNAME=eth0 \
            CNI_NETNS="/run/netns/$PREFIX-$3" CNI_PATH=/usr/lib/cni tartan-cni
}

# attach NODE POD [KEYS]: until the law ends.
attach() {
    undo call DEL "$@"
    call ADD "$@" >"$SCRATCH/attached" || die "ADD of $2: $(cat "$SCRATCH/attached")"
}

# pings FROM ADDRESS: of five requests all are answered.
pings() {
    equal "ping $1 to $2" "5 received" "$(in_ns "$1" python3 "$TOOLS/pings.py" "$2" 5 0.02 20)"
}
