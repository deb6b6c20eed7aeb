#!/usr/bin/env bash
# Addresses of Debian's host-local or static, where the configuration delegates to them: the pod has what they give, the
# agent records it, and they get it back. One that is full, or is not there, is named.
# labs: inside=dual third=tartan device=tun format=vxlan
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/cni.sh
. "$TOOLS/cni.sh"

# Where the plugin, too, looks for what host-local gave.
NETWORKS=$LAB_STATE/node1/var/lib/cni/networks
HOST_LOCAL=$(jq -nc --arg dataDir "$NETWORKS" '{ipam: {type: "host-local", $dataDir,
    ranges: [[{subnet: "10.244.1.0/24", rangeStart: "10.244.1.200", rangeEnd: "10.244.1.201"}]]}}')
STATIC='{"ipam": {"type": "static", "addresses": [{"address": "10.244.1.77/24"}, {"address": "fd00:10:244:1::77/64"}]}}'

# What host-local has given.
reserved() {
    find "$NETWORKS/tartan" -type f -name '10.*' -printf '%f\n' 2>/dev/null | sort | paste -sd ' '
}

# has POD ADDRESS...: in its result, by the agent and in its namespace.
has() {
    local pod=$1 address
    shift
    equal "addresses in the result of $pod" "$*" "$(jq '.ips[].address' "$SCRATCH/$pod.eth0" | bare)"
    equal "addresses of $pod by the agent" "$*" "$(row node1 "$pod" | jq '.addresses[]' | bare)"
    equal "addresses in $pod" "$*" \
        "$(ip -n "$PREFIX-$pod" -j address show eth0 | jq '.[0].addr_info[] | select(.scope == "global").local' | bare)"
    for address; do pings pod3 "$address"; done
}

# Strings of JSON as words, addresses without their lengths.
bare() {
    jq -rs 'map(split("/")[0]) | join(" ")'
}

# refused POD KEYS PART
refused() {
    local answer
    if answer=$(call ADD node1 "$1" "$2"); then fail "$1 is attached: $answer"; fi
    [[ $answer == *"$3"* ]] || fail "the refusal of $1 does not name '$3': $answer"
}

[ ! -e "$LAB_STATE/node1/var/lib/cni" ] || die "host-local is in use"
undo rm -r "$LAB_STATE/node1/var/lib/cni"
new_pods one two three
attach node1 one "$HOST_LOCAL"
attach node1 two "$HOST_LOCAL"
has one 10.244.1.200
has two 10.244.1.201
equal "addresses that host-local has given" '10.244.1.200 10.244.1.201' "$(reserved)"
refused three "$HOST_LOCAL" 'no IP addresses available'
for POD in one two; do call DEL node1 "$POD" "$HOST_LOCAL" || fail "DEL of $POD"; done
equal "addresses that host-local has given" '' "$(reserved)"
attach node1 three "$STATIC"
has three 10.244.1.77 fd00:10:244:1::77
refused one '{"ipam": {"type": "nowhere"}}' nowhere
