#!/usr/bin/env bash
# The kernel path goes out of use and comes into use again under steady datagrams: for a configuration, for an IPsec
# policy, after another process took the format's port, and once its service was killed. None is lost, but a few the
# first time, when the kernel makes the queueing discipline that programs hang from; nor once the sockets are open of
# a node that is not to use it, behind a kill of one that did. Out of use, and after an orderly stop or `tartan
# cleanup`, nothing of it is left; what another program removes is put back. A pod cannot speak as its node to the
# private port of another node.
# labs: kernel-path=stateless
# full: kernel-path=auto
# last: it kills agents and changes their configuration
# seconds: 600
. "$TOOLS/kernel_path.sh"

FAR=pod3
if [ "$PEER" = kernel-vxlan ]; then FAR=pod5; fi
# IPsec of other hosts, so that no packet meets it.
POLICY=(src 198.51.100.1/32 dst 198.51.100.2/32 dir out)
PINS=$LAB_STATE/node1/sys/fs/bpf/tartan
STEPS=()

# under_load MOST WHAT CMD...: what it may cost, at most, between two marks.
under_load() {
    STEPS+=("$1|$2")
    say "$2"
    "${@:3}"
    a_while pod1 In 50
    mark
}

kill_the_service() {
    kill_service node1
    until_true 5 "the kernel path of node1 is in use again" kernel_path_in_use node1
    # What peers announced to the service before holds.
    equal "why its programs do not send to $FAR" "" "$(in_user_space node1 "$(node_of_pod "$FAR")")"
}

# nothing_left WHEN
nothing_left() {
    equal "programs on node1 $1" "" "$(programs_of node1)"
    if ip -n "$PREFIX-node1" link show tartan0-gro >/dev/null 2>&1; then fail "tartan0-gro is there $1"; fi
    if [ -e "$PINS" ]; then fail "programs and tables are pinned $1"; fi
}

# Another process has the format's port from the moment that it is free, with a real-time priority, so that no other is
# first. node1 is to be out of use, and cannot: its sockets stay where they are.
off_without_port() {
    start_in node1 chrt --fifo 10 python3 -c "$TAKE" "$FORMAT_PORT" >"$SCRATCH/taken"
    TAKER=$PID
    set_mode node1 off
    until_true 5 "another process has the format's port" grep -q taken "$SCRATCH/taken"
    until_true 5 "node1 says that it is not out of use" status_has node1 '[.problems[].code] == ["kernel-path-off"]'
    is_bound node1 udp "$PRIVATE_PORT" || fail "node1 receives nowhere: no socket has the private port"
}

TAKE='
import socket, sys, time
taker = socket.socket(type=socket.SOCK_DGRAM)
while True:
    try:
        taker.bind(("0.0.0.0", int(sys.argv[1])))
        break
    except OSError:
        time.sleep(0.0002)
print("taken", flush=True)
time.sleep(600)'

give_port_back() {
    stop "$TAKER"
    # By itself it tries again in ten seconds.
    if [ -z "${FULL:-}" ]; then kill -HUP "$(service_of node1)"; fi
    until_true 15 "node1 is out of use" no_problem node1
    until_true 5 "node1 has the format's port again" has_format_port
    nothing_left "after the port was given back"
}

has_format_port() {
    is_bound node1 udp "$FORMAT_PORT" && ! is_bound node1 udp "$PRIVATE_PORT"
}

set_ipsec_policy() {
    ip -n "$PREFIX-node1" xfrm policy add "${POLICY[@]}" tmpl proto esp mode transport
    until_true 3 "node1 is out of use for it" status_has node1 '.kernel_path.reason // "" | contains("IPsec policies")'
    until_true 5 "node1 receives at the format's port" has_format_port
    nothing_left "with an IPsec policy"
}

# By itself it comes back after a minute without a policy.
without_ipsec_policy() {
    set_mode node1 off
    ip -n "$PREFIX-node1" xfrm policy delete "${POLICY[@]}"
    set_mode node1 "$KERNEL_PATH"
}

# node1 is out of use, and its pods' datagrams to a private port are masqueraded as any other.
guards_private_port() {
    local port
    in_ns node2 nft "add table ip guarded; add chain ip guarded seen { type filter hook prerouting priority -300; }"
    for port in "$PRIVATE_PORT" $((PRIVATE_PORT + 1)); do
        # By their length: the programs of node2 give user space what others sent at the private port too.
        in_ns node2 nft "add rule ip guarded seen udp dport $port udp length 10 counter"
        in_ns pod1 bash -c "for _ in 1 2 3; do echo x >/dev/udp/$(underlay_of node2 4)/$port; done"
    done
    # The port beside it shows that datagrams of pods arrive there.
    equal "datagrams of pod1 that reach node2's private port, and the port beside it" "0 3" \
        "$(in_ns node2 nft list chain ip guarded seen | sed -n 's/.*counter packets \([0-9]*\).*/\1/p' | paste -sd ' ')"
    in_ns node2 nft "delete table ip guarded"
}

repairs() {
    in_ns node1 tc filter del dev eth0 ingress
    until_true 12 "the program at the underlay is put back" has_programs || programs_of node1
    # A device that goes while the agent is at it takes the kernel path out of use for a minute.
    a_while pod1 In 250
    ip -n "$PREFIX-node1" link delete tartan0-gro
    until_true 12 "the VXLAN device is put back" has_programs || programs_of node1
}

has_programs() {
    [ "$(programs_of node1 | grep -c -e underlay_in -e tunnel_out -e gro_in)" = 3 ]
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

# opened: how often sockets of node1 were opened, by its log.
opened() {
    grep -c 'opened name="receive-vxlan-v4-0"' "$LAB_STATE/node1/log"
}

# node1 is killed and starts again without it, under datagrams that user space carries.
starts_without() {
    local starting before
    serve pod1
    talk pod3 pod1 left 9001 9000 options
    a_while pod3 In
    kill_agent node1
    mark
    a_while pod3
    mark
    before=$(opened)
    write_mode node1 off
    lab start node1 &
    starting=$!
    until_true 5 "the sockets of node1 are open" more_than "$before" opened
    mark
    wait "$starting" || fail "the start of node1"
    until_true 10 "node1 has the format's port alone" has_format_port
    until_true 5 "node1 is out of use without a problem" \
        status_has node1 '.kernel_path.mode == "off" and .problems == [] and (.kernel_path.in_use | not)'
    a_while pod3 In
    stop "$SENDER"
    # Otherwise the programs carry them, and nothing is shown.
    equal "datagrams answered while nothing served node1" 0 "$(answered left 1)"
    equal "datagrams lost once the sockets were open" 0 "$(lost left 3)"
    nothing_left "after the start with the kernel path off"
}

as_the_lab_says node1
lab stop node1
nothing_left "after an orderly stop"
write_mode node1 "$KERNEL_PATH"
start_node node1
[ -e "$PINS" ] || fail "programs and tables are not pinned"
starts_without
set_mode node1 "$KERNEL_PATH"
kill_agent node1
tartan node1 cleanup >"$SCRATCH/cleanup" || fail "tartan cleanup ended with code $?: $(cat "$SCRATCH/cleanup")"
grep -q 'removed programs and tables in .*/sys/fs/bpf/tartan' "$SCRATCH/cleanup" || fail "$(cat "$SCRATCH/cleanup")"
nothing_left "after tartan cleanup"
# So that the next time it comes into use is a first one.
equal "queueing discipline at eth0 after tartan cleanup" "" "$(in_ns node1 tc qdisc show dev eth0 | grep clsact)"
write_mode node1 off
lab start node1
guards_private_port
start_datagrams pod1 "$FAR"
a_while pod1 In 50
mark
under_load $((RATE / 10)) "into use" set_mode node1 "$KERNEL_PATH"
until_true 10 "the programs of node1 carry" carries
under_load 0 "service killed" kill_the_service
under_load 0 "no way out of use without the format's port" off_without_port
under_load 0 "out of use once the port is free" give_port_back
under_load 0 "into use again" set_mode node1 "$KERNEL_PATH"
under_load 0 "out of use for an IPsec policy" set_ipsec_policy
under_load 0 "into use without it" without_ipsec_policy
under_load 1000000 "another program removes what is ours" repairs
until_true 10 "the programs of node1 carry after the repairs" carries
under_load 0 "out of use" set_mode node1 off
nothing_left "after kernel-path = off"
stop "$SENDER"
for STEP in "${!STEPS[@]}"; do
    MOST=${STEPS[STEP]%%|*} FOUND=$(lost sent $((STEP + 1)))
    # How long the way into use takes is a bar of time.
    if [ "$MOST" = $((RATE / 10)) ]; then
        measured_at_most "${STEPS[STEP]#*|}: datagrams lost" "$MOST" "$FOUND"
    else
        at_most "${STEPS[STEP]#*|}: datagrams lost" "$MOST" "$FOUND"
    fi
done
measured_at_most "datagrams lost in a moment at first" 3 "$(lost sent 1)"
