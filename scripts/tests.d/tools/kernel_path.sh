# shellcheck shell=bash
# The kernel path of single nodes: its mode, its programs and its flows. Sourced after law.sh or test_case.sh.
. "$TOOLS/kill_service.sh"
. "$TOOLS/held_load.sh"

# With the kernel path in use user space receives at a port of its own.
# shellcheck disable=SC2034 # The laws use them.
FORMAT_PORT=8472 PRIVATE_PORT=18472

# start_node NODE: anew, running or not; its kernel path is in use then.
start_node() {
    if ! have_ended "$(keeper_of "$1")"; then lab stop "$1"; fi
    lab start "$1"
    until_true 10 "the kernel path of $1 is in use" kernel_path_in_use "$1"
}

write_mode() {
    mkdir -p "$LAB_STATE/$1/etc/tartan"
    echo "kernel-path = \"$2\"" >"$LAB_STATE/$1/etc/tartan/tartan.toml"
}

# as_the_lab_says NODE: at the law's end its mode is the lab's again.
as_the_lab_says() {
    undo start_node "$1"
    undo rm -f "$LAB_STATE/$1/etc/tartan/tartan.toml"
}

# set_mode NODE MODE: by its configuration, which a signal has the service read. Waits until the kernel path is in use
# or not.
set_mode() {
    local restarts in_use=true
    if [ "$2" = off ]; then in_use=false; fi
    restarts=$(agent_json "$1" status | jq .restarts)
    write_mode "$1" "$2"
    kill -HUP "$(service_of "$1")"
    until_true 5 "a service of $1 with kernel-path = $2" status_has "$1" \
        ".restarts > $restarts and .kernel_path.mode == \"$2\" and .kernel_path.in_use == $in_use"
}

# status_has NODE FILTER: whether it holds of what `tartan status` prints as JSON.
status_has() {
    agent_json "$1" status | jq -e "$2"
}

# in_user_space NODE PEER: why NODE's programs do not send to it; nothing where they do. In etcd a node has another
# name.
in_user_space() {
    agent_json "$1" peers | jq -r --arg address "$(underlay_of "$2" 4)" \
        '.peers[] | select(.public_ip == $address).user_space // empty'
}

# choose_far: the pod that pod1 talks to, FAR, and the nodes that have flows, SIDES. A node of Tartan's that user space
# sends to has none: the kernel's is in its place.
# shellcheck disable=SC2034 # The laws use them.
choose_far() {
    FAR=pod3 SIDES=(node1 node2)
    if [ -n "$(in_user_space node1 node2)" ]; then FAR=pod5 SIDES=(node1); fi
}

# programs_of NODE: our programs there, one a line.
programs_of() {
    ip -n "$PREFIX-$1" -o link show |
        sed -E 's/^[0-9]+: ([^:@]+).*/filter show dev \1 ingress\nfilter show dev \1 egress/' |
        ip netns exec "$PREFIX-$1" tc -force -batch - 2>/dev/null | sed -nE 's/.* (tartan:[a-z_]+) .*/\1/p' || true
}

# flows NODE FIELD: a count of the flow thread. flows NODE refused|revoked NAME: of its lists, for a reason or a cause.
flows() {
    agent_json "$1" status | jq --arg name "${3:-}" ".kernel_path.flows.$2 // 0 |
        if type == \"array\" then map(select((.reason // .cause) == \$name).count) | add // 0 else . end"
}

more_than() {
    [ "$("${@:2}")" -gt "$1" ]
}

# at_least WHAT LEAST FOUND
at_least() {
    if [ "$3" -ge "$2" ]; then say "$1: $3 (at least $2)"; else fail "$1: at least $2 expected, found $3"; fi
}

# watch_stack NODE...: counts what the host's stack forwards between pods (`pods`) and of translated connections
# (`translated`), apart from everything else; until the law's end.
watch_stack() {
    local node which=
    # There user space carries super-packets of TCP.
    if [ "$UNDERLAY" = no-tunnel ]; then which='meta l4proto udp'; fi
    for node; do
        in_ns "$node" nft "add table ip watch; add counter ip watch pods; add counter ip watch translated
            add chain ip watch forward { type filter hook forward priority -300; }
            add rule ip watch forward ct status dnat counter name translated
            add rule ip watch forward ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 $which counter name pods"
        undo in_ns "$node" nft delete table ip watch
    done
}

# watched NODE [NAME]: packets so far. Steady datagrams are not joined but where their lengths begin anew (steady.py).
watched() {
    local text
    text=$(in_ns "$1" nft list counter ip watch "${2:-pods}")
    [[ $text =~ packets\ ([0-9]+) ]]
    echo "${BASH_REMATCH[1]}"
}

# udp POD In|Out: datagrams so far.
udp() {
    # shellcheck disable=SC2016 # awk's.
    in_ns "$1" awk -v way="$2" '/^Udp: [0-9]/ { sum += $(way == "In" ? 2 : 5) }
        $1 == "Udp6" way "Datagrams" { sum += $2 }
        END { print sum }' /proc/net/snmp /proc/net/snmp6
}

# a_while POD [In|Out [COUNT]]: until it has sent or received so many more.
a_while() {
    until_true 10 "${3:-$((RATE / 4))} datagrams more at $1" \
        more_than $(($(udp "$1" "${2:-Out}") + ${3:-RATE / 4} - 1)) udp "$1" "${2:-Out}"
}

# 50 datagrams that come to pod1 pass by the stack of each node of SIDES.
is_short() {
    local node before=()
    for node in "${SIDES[@]}"; do before+=("$(watched "$node")"); done
    a_while pod1 In 50
    for node in "${SIDES[@]}"; do
        [ "$(watched "$node")" = "${before[0]}" ] || return 1
        before=("${before[@]:1}")
    done
}
