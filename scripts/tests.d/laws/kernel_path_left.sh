#!/usr/bin/env bash
# A service and a keeper that use the kernel path are killed, and the next ones are not to use it: from the moment that
# their sockets are open nothing that comes is lost, and in the end nothing of the kernel path is left. With --full also
# where no program may be loaded any more (CAP_BPF) and those of before are not pinned, and where another process has
# the private port.
# labs: kernel-path=stateless
# full: kernel-path=auto
# last: it kills agents and changes their configuration
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

WAYS=(off)
if [ -n "${FULL:-}" ]; then WAYS+=(forbidden taken); fi

# start_off WAY: node1 starts again, without the kernel path.
start_off() {
    write_mode node1 off
    case $1 in
    forbidden)
        rm -r "$LAB_STATE/node1/sys/fs/bpf/tartan"
        setpriv --bounding-set=-bpf "$SCRIPTS/lab" start --prefix "$PREFIX" node1
        ;;
    *) lab start node1 ;;
    esac
}

is_out_of_use() {
    [ -z "$(programs_of node1)" ] && ! ip -n "$PREFIX-node1" link show tartan0-gro && is_bound node1 udp "$FORMAT_PORT"
}

# log_of_start: what node1's log has since the start.
log_of_start() {
    tail -n "+$((LOGGED + 1))" "$LAB_STATE/node1/log"
}

are_open() {
    grep -q 'opened name="receive-vxlan-v4-0"' <<<"$(log_of_start)"
}

left() {
    local starting
    is_pinned node1 || fail "programs and tables are not pinned"
    talk pod3 pod1 "sent-$1" 9001 9000 options
    a_while pod3 In
    kill_agent node1
    if [ "$1" = taken ]; then
        take_port node1 "$PRIVATE_PORT"
        until_true 5 "another process has the private port" is_taken
    fi
    mark "$SENDER"
    a_while pod3
    mark "$SENDER"
    LOGGED=$(wc -l <"$LAB_STATE/node1/log")
    start_off "$1" &
    starting=$!
    until_true 5 "the sockets of node1 are open" are_open
    mark "$SENDER"
    wait "$starting" || fail "the start of node1"
    until_true 10 "nothing of the kernel path is left on node1" is_out_of_use || programs_of node1
    a_while pod3 In
    stop "$SENDER"
    # Otherwise the programs carry them, and nothing is shown.
    equal "$1: datagrams answered while nothing served node1" 0 \
        $(($(number "sent-$1" 2) - $(number "sent-$1" 1) - $(missing "sent-$1" 1 2)))
    equal "$1: datagrams lost once the sockets were open" 0 "$(missing "sent-$1" 3 =1000000000)"
    case $1 in
    forbidden) grep -q 'the programs of the service before stay' <<<"$(log_of_start)" || fail "programs could be loaded" ;;
    taken) stop "$TAKER" ;;
    esac
    until_true 5 "$1: out of use without a problem" status_has node1 '.kernel_path.mode == "off" and .problems == []'
    nothing_left node1 "after the start with the kernel path off"
    if is_bound node1 udp "$PRIVATE_PORT"; then fail "a socket has the private port"; fi
    law_one node1
}

undo start_again node1
undo rm -f "$LAB_STATE/node1/etc/tartan/tartan.toml"
serve pod1
for WAY in "${WAYS[@]}"; do
    write_mode node1 "$KERNEL_PATH"
    if [ "$WAY" != off ]; then start_again node1; fi
    until_true 10 "the kernel path of node1 is in use" kernel_path_in_use node1
    left "$WAY"
done
