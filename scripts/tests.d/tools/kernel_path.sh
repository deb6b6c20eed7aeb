# shellcheck shell=bash
# The kernel path of single nodes: its mode, its programs, its flows, and steady datagrams (steady.py) that are judged
# by number. Sourced after law.sh or test_case.sh.

# Datagrams a second.
RATE=${RATE:-500}
FAMILY=${FAMILY:-4}
# With the kernel path in use user space receives at a port of its own.
# shellcheck disable=SC2034 # The laws use them.
FORMAT_PORT=8472 PRIVATE_PORT=18472

start_again() {
    lab stop "$1"
    lab start "$1"
}

write_mode() {
    mkdir -p "$LAB_STATE/$1/etc/tartan"
    echo "kernel-path = \"$2\"" >"$LAB_STATE/$1/etc/tartan/tartan.toml"
}

# set_mode NODE MODE: by its configuration, which a signal has the service read. Waits until the kernel path is in use
# or not.
set_mode() {
    local restarts in_use=true
    if [ "$2" = off ]; then in_use=false; fi
    restarts=$(agent_json "$1" status | jq .restarts)
    write_mode "$1" "$2"
    kill -HUP "$(service_pid "$1")"
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
    FROM=pod1 FAR=pod3 SIDES=(node1 node2)
    if [ -n "$(in_user_space node1 node2)" ]; then
        FAR=pod5
        SIDES=(node1)
    fi
}

programs_send() {
    kernel_path_in_use "$1" && [ -z "$(in_user_space "$1" "$2")" ]
}

# restarted NODE PID: another service than that process has the kernel path in use.
restarted() {
    [ "$(service_pid "$1")" != "$2" ] && kernel_path_in_use "$1"
}

# kill_agent NODE [keeper]: keeper and service at once, or the keeper alone, of which the service learns. Both have
# ended then.
kill_agent() {
    local keeper service
    keeper=$(cat "$LAB_STATE/$1/pid")
    service=$(pgrep -P "$keeper")
    if [ "${2:-}" = keeper ]; then kill -KILL "$keeper"; else kill -KILL "$keeper" "$service"; fi
    until_true 10 "keeper and service of $1 have ended" have_ended "$keeper" "$service"
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

# nothing_left NODE WHEN
nothing_left() {
    equal "programs on $1 $2" "" "$(programs_of "$1")"
    if ip -n "$PREFIX-$1" link show tartan0-gro >/dev/null 2>&1; then fail "tartan0-gro is there $2"; fi
    if is_pinned "$1"; then fail "programs and tables are pinned $2"; fi
}

# take_port NODE PORT: another process has the UDP port from the moment that it is free; its process id is in TAKER, and
# the file `taken` says when it has it. With a real-time priority, so that no other is first.
take_port() {
    start_in "$1" chrt --fifo 10 python3 -c "$TAKE" "$2" >"$SCRATCH/taken"
    # shellcheck disable=SC2034 # The laws use it.
    TAKER=$PID
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

is_taken() {
    grep -q taken "$SCRATCH/taken"
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

# nft NODE LINE...
nft_in() {
    ip netns exec "$PREFIX-$1" nft "${@:2}"
}

# watch_stack NODE: counts what the host's stack forwards between pods (`pods`) and of translated connections
# (`translated`), apart from everything else; until the law's end.
watch_stack() {
    local which=
    # There user space carries super-packets of TCP.
    if [ "$UNDERLAY" = no-tunnel ]; then which='meta l4proto udp'; fi
    nft_in "$1" "add table ip watch; add counter ip watch pods; add counter ip watch translated
        add chain ip watch forward { type filter hook forward priority -300; }
        add rule ip watch forward ct status dnat counter name translated
        add rule ip watch forward ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 $which counter name pods"
    undo nft_in "$1" delete table ip watch
}

# watched NODE [NAME]: steady datagrams so far. Of those that were gathered the counter has one packet, and one header
# of 28 bytes.
watched() {
    nft_in "$1" -j list counter ip watch "${2:-pods}" |
        jq '.nftables[].counter | values | (.bytes - 28 * .packets) / 200 | floor'
}

# serve POD [NAME [PORT]]: the receiver of steady datagrams, whose report is the file `served`, or NAME; its process id
# is in SERVER.
serve() {
    start_in "$1" python3 "$TOOLS/steady.py" serve "$(address_of "$1" "$FAMILY")" "${3:-9000}" >"$SCRATCH/${2:-served}"
    # shellcheck disable=SC2034 # The laws use it.
    SERVER=$PID
    until_true 5 "$1 serves" is_bound "$1" udp "${3:-9000}"
}

# talk POD POD|ADDRESS [NAME PORT PORT [OPTION...]]: RATE steady datagrams a second from one port to the other, and the
# report in the file `sent`, or NAME; the sender's process id is in SENDER.
talk() {
    local to=$2
    if [[ $to == pod* ]]; then to=$(address_of "$to" "$FAMILY"); fi
    start_in "$1" python3 "$TOOLS/steady.py" send '' "${4:-9001}" "$to" "${5:-9000}" "$RATE" "${@:6}" \
        >"$SCRATCH/${3:-sent}"
    # shellcheck disable=SC2034 # The laws use it.
    SENDER=$PID
}

# mark SENDER: notes the number that is next; `number FILE N` is the Nth of its marks, from 1.
mark() {
    kill -USR1 "$1"
}

number() {
    awk -v field=$(($2 + 1)) '$1 == "marks" { print $field }' "$SCRATCH/$1"
}

# udp POD In|Out: datagrams so far.
udp() {
    in_ns "$1" nstat -asz "Udp${2}Datagrams" "Udp6${2}Datagrams" | awk 'NR > 1 { sum += $2 } END { print sum }'
}

# a_while POD [In|Out [COUNT]]: until it has sent or received so many more.
a_while() {
    until_true 10 "${3:-$((RATE / 4))} datagrams more at $1" \
        more_than $(($(udp "$1" "${2:-Out}") + ${3:-RATE / 4} - 1)) udp "$1" "${2:-Out}"
}

# missing FILE [FROM TO]: how many numbers of a report have no answer, or did not come; those between two of its marks,
# from 1, or of those that are given as =NUMBER.
missing() {
    local from=0 to=1000000000
    if [ $# -gt 1 ]; then
        from=${2#=} to=${3#=}
        if [ "$from" = "$2" ]; then from=$(number "$1" "$2"); fi
        if [ "$to" = "$3" ]; then to=$(number "$1" "$3"); fi
    fi
    awk -v from="$from" -v to="$to" '$1 == "hole" {
        low = $2 > from ? $2 : from
        high = $2 + $3 < to ? $2 + $3 : to
        if (high > low) sum += high - low
    } END { print sum + 0 }' "$SCRATCH/$1"
}

# is_short NODE... : 50 datagrams that the sender's pod, FROM, has answered pass by the stack of each.
is_short() {
    local node before=() answers
    for node; do before+=("$(watched "$node")"); done
    answers=$(udp "$FROM" In)
    until [ "$(udp "$FROM" In)" -ge $((answers + 50)) ]; do sleep 0.1; done
    for node; do
        [ "$(watched "$node")" = "${before[0]}" ] || return 1
        before=("${before[@]:1}")
    done
}

# cni_in NODE VERB POD ARGUMENTS
cni_in() {
    printf '{ "cniVersion": "1.0.0", "name": "tartan", "type": "tartan-cni", "root": "%s" }\n' "$LAB_STATE/$1" |
        ip netns exec "$PREFIX-$1" env CNI_COMMAND="$2" CNI_CONTAINERID="$PREFIX-$3" CNI_IFNAME=eth0 CNI_PATH="$BIN" \
            CNI_NETNS="/var/run/netns/$PREFIX-$3" CNI_ARGS="IgnoreUnknown=1;$4" "$BIN/tartan-cni" >"$SCRATCH/cni" ||
        fail "CNI $2 of $3: $(cat "$SCRATCH/cni")"
}

# another_pod NODE POD [ADDRESS]: one more, until the law's end; with this address, or any.
another_pod() {
    cp "$LAB_STATE/pods" "$SCRATCH/pods-before-$2"
    cp "$LAB_STATE/namespaces" "$SCRATCH/namespaces-before-$2"
    undo no_pod "$1" "$2"
    make_namespace "$2"
    ip -n "$PREFIX-$2" link set lo up
    cni_in "$1" ADD "$2" "${3:+IP=$3}"
    echo "$2 $1 $(jq -r '.ips | map(.address | split("/")[0]) | join(" ")' "$SCRATCH/cni")" >>"$LAB_STATE/pods"
}

# no_pod NODE POD: away, if it is there.
no_pod() {
    [ -e "/run/netns/$PREFIX-$2" ] || return 0
    cni_in "$1" DEL "$2" ''
    ip netns delete "$PREFIX-$2"
    cp "$SCRATCH/pods-before-$2" "$LAB_STATE/pods"
    cp "$SCRATCH/namespaces-before-$2" "$LAB_STATE/namespaces"
}

# resets POD...: connections that were reset.
resets() {
    local pod
    for pod; do
        in_ns "$pod" nstat -asz TcpEstabResets TcpOutRsts TcpExtTCPAbortOnData
    done | awk '/^Tcp/ { sum += $2 } END { print sum + 0 }'
}

# transfer FROM TO PORT BYTES [RATE]: in the background until end_transfer; its processes are in RECEIVER and BULK.
transfer() {
    start_in "$2" python3 "$TOOLS/bulk.py" receive "$(address_of "$2" "$FAMILY")" "$3" >"$SCRATCH/received"
    RECEIVER=$PID
    until_true 5 "$2 receives" is_bound "$2" tcp "$3"
    start_in "$1" python3 "$TOOLS/bulk.py" send "$(address_of "$2" "$FAMILY")" "$3" "$4" "${@:5}" >"$SCRATCH/bulk"
    BULK=$PID
}

# end_transfer WHAT: it arrived as it was sent.
end_transfer() {
    wait "$BULK" || fail "the sender of the transfer $1"
    wait "$RECEIVER" || fail "the receiver of the transfer $1"
    equal "bytes and sha256 of the transfer $1" "$(cat "$SCRATCH/bulk")" "$(cat "$SCRATCH/received")"
}
