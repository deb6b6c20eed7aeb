#!/usr/bin/env bash
# The kernel path goes out of use and comes into use again under steady datagrams: for a configuration, for an IPsec
# policy, after another process took the format's port, and once its service was killed. None is lost, but a few the
# first time, when the kernel makes the queueing discipline that programs hang from. Out of use, and after an orderly
# stop or `tartan cleanup`, nothing of it is left; what another program removes is put back. A pod cannot speak as its
# node to the private port of another node.
# labs: kernel-path=stateless
# full: kernel-path=auto
# last: it kills agents and changes their configuration
# seconds: 600
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

MOST_LOST_AT_FIRST=3
FAR=pod3
if [ "$PEER" = kernel-vxlan ]; then FAR=pod5; fi
STEPS=()

# under_load MOST WHAT CMD...: what it may cost, at most, between two marks.
under_load() {
    STEPS+=("$1|$2")
    say "$2"
    "${@:3}"
    a_while pod1 In 50
    mark "$SENDER"
}

judge() {
    local step most what lost
    for step in "${!STEPS[@]}"; do
        IFS='|' read -r most what <<<"${STEPS[step]}"
        lost=$(missing sent $((step + 1)) $((step + 2)))
        if [ "$most" = "$MOST_LOST_AT_FIRST" ]; then
            measured_at_most "$what: datagrams lost in a moment" "$most" "$lost"
            most=$((RATE / 10))
        fi
        at_most "$what: datagrams lost" "$most" "$lost"
    done
}

kill_the_service() {
    local pid
    pid=$(service_pid node1)
    kill -KILL "$pid"
    until_true 5 "a new service on node1" restarted node1 "$pid"
    # What peers announced to the service before holds.
    equal "why its programs do not send to $FAR" "" "$(in_user_space node1 "$(node_of_pod "$FAR")")"
}

has_programs() {
    [ "$(programs_of node1 | grep -c -e underlay_in -e tunnel_out -e gro_in)" = 3 ]
}

# node1 is to be out of use, and cannot: its sockets stay where they are.
off_without_port() {
    set_mode node1 off
    until_true 5 "another process has the format's port" is_taken
    until_true 5 "node1 says that it is not out of use" problems_are '["kernel-path-off"]'
    is_bound node1 udp "$PRIVATE_PORT" || fail "node1 receives nowhere: no socket has the private port"
}

give_port_back() {
    stop "$TAKER"
    # By itself it tries again in ten seconds.
    if [ -z "${FULL:-}" ]; then kill -HUP "$(service_pid node1)"; fi
    until_true 15 "node1 is out of use" problems_are '[]'
    until_true 5 "node1 has the format's port again" has_format_port
}

problems_are() {
    [ "$(agent_json node1 status | jq -c '[.problems[].code]')" = "$1" ]
}

has_format_port() {
    is_bound node1 udp "$FORMAT_PORT" && ! is_bound node1 udp "$PRIVATE_PORT"
}

# ipsec_policy VERB: of other hosts, so that no packet meets it.
ipsec_policy() {
    ip -n "$PREFIX-node1" xfrm policy "$1" src 198.51.100.1/32 dst 198.51.100.2/32 dir out "${@:2}"
}

set_ipsec_policy() {
    ipsec_policy add tmpl proto esp mode transport
    until_true 3 "node1 is out of use for it" status_has node1 '.kernel_path.reason // "" | contains("IPsec policies")'
    until_true 5 "node1 receives at the format's port" is_bound node1 udp "$FORMAT_PORT"
}

# By itself it comes back after a minute without a policy.
without_ipsec_policy() {
    set_mode node1 off
    ipsec_policy delete
    set_mode node1 "$KERNEL_PATH"
}

# node1 is out of use, and its pods' datagrams to a private port are masqueraded as any other.
guards_private_port() {
    local port
    nft_in node2 "add table ip guarded; add chain ip guarded seen { type filter hook prerouting priority -300; }"
    for port in "$PRIVATE_PORT" $((PRIVATE_PORT + 1)); do
        # By their length: the programs of node2 give user space what others sent at the private port too.
        nft_in node2 "add rule ip guarded seen udp dport $port udp length 10 counter"
        in_ns pod1 bash -c "for _ in 1 2 3; do echo x >/dev/udp/$(underlay_of node2 4)/$port; done"
    done
    # The port beside it shows that datagrams of pods arrive there.
    equal "datagrams of pod1 that reach node2's private port, and the port beside it" "0 3" \
        "$(nft_in node2 list chain ip guarded seen | sed -n 's/.*counter packets \([0-9]*\).*/\1/p' | paste -sd ' ')"
    nft_in node2 "delete table ip guarded"
}

repairs() {
    in_ns node1 tc filter del dev eth0 ingress
    until_true 12 "the program at the underlay is put back" has_programs || programs_of node1
    ip -n "$PREFIX-node1" link delete tartan0-gro
    until_true 12 "the VXLAN device is put back" has_programs || programs_of node1
}

# carries: the programs of node1 send and deliver what pod1 and FAR exchange.
carries() {
    local sent delivered
    sent=$(kernel_path_flow node1 outbound sent)
    delivered=$(kernel_path_flow node1 inbound delivered)
    a_while pod1 In 100
    more_than $((sent + 99)) kernel_path_flow node1 outbound sent &&
        more_than $((delivered + 99)) kernel_path_flow node1 inbound delivered
}

ends_and_starts() {
    lab stop node1
    nothing_left node1 "after an orderly stop"
    lab start node1
    until_true 5 "the kernel path after another start" kernel_path_in_use node1
    is_pinned node1 || fail "programs and tables are not pinned"
    kill_agent node1
    tartan node1 cleanup >"$SCRATCH/cleanup" || fail "tartan cleanup ended with code $?: $(cat "$SCRATCH/cleanup")"
    grep -q 'removed programs and tables in .*/sys/fs/bpf/tartan' "$SCRATCH/cleanup" || fail "$(cat "$SCRATCH/cleanup")"
    nothing_left node1 "after tartan cleanup"
    equal "queueing discipline at eth0 after tartan cleanup" "" "$(in_ns node1 tc qdisc show dev eth0 | grep clsact)"
    write_mode node1 off
    lab start node1
}

# Nothing of it is there: the next time it comes into use is a first one.
undo start_again node1
undo rm -f "$LAB_STATE/node1/etc/tartan/tartan.toml"
write_mode node1 "$KERNEL_PATH"
start_again node1
ends_and_starts
guards_private_port
serve "$FAR"
talk pod1 "$FAR"
a_while pod1 In 50
mark "$SENDER"
under_load "$MOST_LOST_AT_FIRST" "into use" set_mode node1 "$KERNEL_PATH"
until_true 10 "the programs of node1 carry" carries
under_load 0 "service killed" kill_the_service
under_load 0 "out of use" set_mode node1 off
nothing_left node1 "after kernel-path = off"
under_load 0 "into use again" set_mode node1 "$KERNEL_PATH"
take_port node1 "$FORMAT_PORT"
under_load 0 "no way out of use without the format's port" off_without_port
under_load 0 "out of use once the port is free" give_port_back
nothing_left node1 "after the port was given back"
under_load 0 "into use after that" set_mode node1 "$KERNEL_PATH"
under_load 0 "out of use for an IPsec policy" set_ipsec_policy
nothing_left node1 "with an IPsec policy"
under_load 0 "into use without it" without_ipsec_policy
under_load 1000000 "another program removes what is ours" repairs
until_true 10 "the programs of node1 carry after the repairs" carries
stop "$SENDER"
stop "$SERVER"
judge
