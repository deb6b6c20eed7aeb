# shellcheck shell=bash
# The kernel path of single nodes, of which peers it is, and flows that leave the host's stack out. Sourced after test_case.sh; a test
# that calls `talk` sets RATE, datagrams a second.

# set_mode NODE MODE [IN_USE]: by its configuration, which a signal has the service read. Waits until the kernel path is in use or
# not, as IN_USE (true or false) says; without it a mode other than off must be in use.
set_mode() {
    local restarts in_use=${3:-true}
    if [ "$2" = off ]; then in_use=false; fi
    restarts=$(agent_json "$1" status | jq .restarts)
    mkdir -p "$LAB_STATE/$1/etc/tartan"
    echo "kernel-path = \"$2\"" >"$LAB_STATE/$1/etc/tartan/tartan.toml"
    kill -HUP "$(service_pid "$1")"
    until_true 5 "a service of $1 with kernel-path = $2" has_mode "$1" "$2" "$restarts" "$in_use"
}

has_mode() {
    agent_json "$1" status | jq -e --arg mode "$2" --argjson restarts "$3" --argjson in_use "$4" \
        '.restarts > $restarts and .kernel_path.mode == $mode and .kernel_path.in_use == $in_use'
}

# in_user_space NODE PEER: why NODE's programs do not send to it; nothing where they do. In etcd a node has another name.
in_user_space() {
    agent_json "$1" peers | jq -r --arg address "$(underlay_of "$2" 4)" '.peers[] | select(.public_ip == $address).user_space // empty'
}

programs_send() {
    kernel_path_in_use "$1" && [ -z "$(in_user_space "$1" "$2")" ]
}

user_space_sends() {
    [ -n "$(in_user_space "$1" "$2")" ]
}

# restarted NODE PID: another service than that process has the kernel path in use.
restarted() {
    [ "$(service_pid "$1")" != "$2" ] && kernel_path_in_use "$1"
}

# have_ended PID...: none of the processes runs. One that its parent has not waited for yet has no program any more.
have_ended() {
    local pid
    for pid in "$@"; do
        if readlink "/proc/$pid/exe" >/dev/null; then return 1; fi
    done
}

# is_pinned NODE: programs and tables are pinned in the node's BPF file system.
is_pinned() {
    [ -e "$LAB_STATE/$1/sys/fs/bpf/tartan" ]
}

# programs_of NODE: our programs there, one a line.
programs_of() {
    local device way
    for device in $(ip -n "$PREFIX-$1" -o link show | sed -E 's/^[0-9]+: ([^:@]+).*/\1/'); do
        for way in ingress egress; do
            ip netns exec "$PREFIX-$1" tc filter show dev "$device" "$way" 2>/dev/null |
                sed -nE "s/.* (tartan:[a-z_]+) .*/$device $way \1/p"
        done
    done
}

# take_port NODE PORT: another process has the UDP port from the moment that it is free; its process id is in TAKER, and the file
# `taken` says when it has it. With a real-time priority, so that no other is first.
take_port() {
    start_in "$1" chrt --fifo 10 python3 "$TOOLS/take_port.py" "$2" >"$SCRATCH/taken"
    # shellcheck disable=SC2034 # The tests use it.
    TAKER=$PID
}

is_taken() {
    grep -q taken "$SCRATCH/taken"
}

# flows NODE FIELD: a count of the flow thread.
flows() {
    agent_json "$1" status | jq ".kernel_path.flows.$2 // 0"
}

# refused NODE REASON
refused() {
    agent_json "$1" status | jq --arg reason "$2" '[.kernel_path.flows.refused[] | select(.reason == $reason).count] | add // 0'
}

# revoked NODE CAUSE
revoked() {
    agent_json "$1" status | jq --arg cause "$2" '[.kernel_path.flows.revoked[] | select(.cause == $cause).count] | add // 0'
}

more_than() {
    [ "$("${@:2}")" -gt "$1" ]
}

# Nanoseconds are beyond the shell's arithmetic of a test: seconds with six places.
now() {
    date +%s.%6N
}

# nft NODE LINE...
nft_in() {
    ip netns exec "$PREFIX-$1" nft "${@:2}"
}

# watch_stack NODE: counts what the host's stack forwards between pods, apart from everything else.
watch_stack() {
    nft_in "$1" "add table ip watch; add chain ip watch forward { type filter hook forward priority -300; }; add rule ip watch forward ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 counter"
}

# watched NODE [bytes]: packets so far, super-packets as one; or bytes.
watched() {
    ip netns exec "$PREFIX-$1" nft -j list chain ip watch forward | jq --arg of "${2:-packets}" '[.. | .counter? | select(.)[$of]] | add'
}

# serve POD [NAME [PORT]]: the receiver of steady datagrams; its process id is in SERVER. When they came stands in the file
# `arrivals`, or NAME, once it has ended.
serve() {
    start_in "$1" python3 "$TOOLS/steady.py" serve "$(address_of "$1" 4)" "${3:-9000}" >"$SCRATCH/${2:-arrivals}"
    # shellcheck disable=SC2034 # The tests use it.
    SERVER=$PID
    until_true 5 "$1 serves" is_bound "$1" udp "${3:-9000}"
}

# talk POD POD [NAME [PORT PORT]]: RATE steady datagrams a second from one port to the other; the sender's process id is in
# SENDER.
talk() {
    start_in "$1" python3 "$TOOLS/steady.py" send "$(address_of "$1" 4)" "${4:-9001}" "$(address_of "$2" 4)" "${5:-9000}" "$RATE" \
        >"$SCRATCH/${3:-sent}"
    # shellcheck disable=SC2034 # The tests use it.
    SENDER=$PID
}

# await_flows NODE BEFORE: both directions of one more flow are installed soon. For connection tracking UDP is a stream
# after 2 s.
await_flows() {
    until_true 10 "two more flows are installed on $1" more_than $(($2 + 1)) flows "$1" installed
}

# arrivals FROM TO [NAME]: how many datagrams came in that time.
arrivals() {
    awk -v from="$1" -v to="$2" '$1 > from && $1 < to { count++ } END { print count + 0 }' "$SCRATCH/${3:-arrivals}"
}

# latest BEFORE AFTER [NAME]: of the datagrams that came before AFTER, how many milliseconds behind BEFORE the last one came.
latest() {
    awk -v before="$1" -v after="$2" '$1 < after { last = $1 } END { late = (last - before) * 1000; if (late < 0) late = 0; printf "%d\n", late + 0.999 }' "$SCRATCH/${3:-arrivals}"
}

# plus TIME SECONDS
plus() {
    awk -v time="$1" -v more="$2" 'BEGIN { printf "%.6f\n", time + more }'
}
