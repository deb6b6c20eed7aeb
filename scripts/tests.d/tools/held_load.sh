# shellcheck shell=bash
# Load that goes on while an agent is stopped, killed or replaced: TCP connections from one pod to another, LOAD_FROM
# and LOAD_TO, from node1 to a ClusterIP and from mallory to a NodePort of node1, which both lead to LOAD_TO; and
# datagrams with numbers, each of them answered. Sourced after law.sh or test_case.sh. FAMILIES are those of the pods.

LOAD_FROM=pod1
LOAD_TO=pod3
HOLDERS=()
PORT=8080
NODE_PORT=30080

# hold WHAT NAME ADDRESS PORT: a connection that goes on in the background.
hold() {
    hold_in "$@"
    connected
}

# hold_in WHAT NAME ADDRESS PORT: the same, not yet connected.
hold_in() {
    begin_to_hold "$1" "$3" "$4" ip netns exec "$PREFIX-$2"
}

# hold_from WHAT ADDRESS PORT CMD...: the same where CMD, which becomes the program, runs it.
hold_from() {
    begin_to_hold "$@"
    connected
}

begin_to_hold() {
    "${@:4}" python3 "$TOOLS/held.py" hold "$2" "$3" >"$SCRATCH/held${#HOLDERS[@]}" 2>&1 &
    STARTED+=("$!")
    HOLDERS+=("$!|$1")
}

# Waits until all are.
connected() {
    local number
    for number in "${!HOLDERS[@]}"; do
        until_true 10 "${HOLDERS[number]#*|} connects" grep -q connected "$SCRATCH/held$number" ||
            cat "$SCRATCH/held$number"
    done
}

# cluster_ip FAMILY: an address of the underlay that no host has.
cluster_ip() {
    if [ "$1" = 6 ]; then echo 2001:db8:192::200; else echo 192.0.2.200; fi
}

# What kube-proxy would write for one Service.
service_rules() {
    local family chain ip to rules
    rules='table inet held { chain after { type nat hook postrouting priority srcnat; ct status dnat masquerade; }'
    for chain in prerouting output; do
        rules+="
            chain $chain { type nat hook $chain priority -100;"
        for family in "${FAMILIES[@]}"; do
            ip=ip${family/4/}
            to=$(socket_address "$(address_of "$LOAD_TO" "$family")" "$PORT")
            rules+="
                $ip daddr $(cluster_ip "$family") tcp dport 80 dnat $ip to $to;
                tcp dport $NODE_PORT dnat $ip to $to;"
        done
        rules+=$'\n}'
    done
    in_ns node1 nft -f - <<<"$rules"$'\n}'
    [ -z "${FACTS:-}" ] || undo in_ns node1 nft delete table inet held
}

start_load() {
    local family addresses=()
    for family in "${FAMILIES[@]}"; do addresses+=("$(address_of "$LOAD_TO" "$family")"); done
    service_rules
    start_in "$LOAD_TO" python3 "$TOOLS/held.py" serve "$PORT" "${addresses[@]}"
    until_true 10 "$LOAD_TO serves" serves "${#addresses[@]}"
    for family in "${FAMILIES[@]}"; do
        hold_in "IPv$family, $LOAD_FROM to $LOAD_TO" "$LOAD_FROM" "$(address_of "$LOAD_TO" "$family")" "$PORT"
        # The node and the host outside have addresses of the underlay's families alone.
        [ "$(underlay_of node1 "$family")" != - ] || continue
        hold_in "IPv$family, node1 to the ClusterIP of $LOAD_TO" node1 "$(cluster_ip "$family")" 80
        hold_in "IPv$family, outside to the NodePort of $LOAD_TO" mallory "$(underlay_of node1 "$family")" "$NODE_PORT"
    done
    connected
    RESETS=$(resets "$LOAD_FROM" "$LOAD_TO" node1 mallory)
}

# serves ADDRESSES: whether LOAD_TO serves at so many.
serves() {
    [ "$(in_ns "$LOAD_TO" ss -Hltn "sport = :$PORT" | wc -l)" -ge "$1" ]
}

# resets NAME...: how many connections each namespace has reset, or had reset.
resets() {
    local name
    for name; do
        in_ns "$name" nstat -asz TcpEstabResets TcpOutRsts TcpExtTCPAbortOnData |
            awk -v name="$name" 'NR > 1 { sum += $2 } END { print name, sum + 0 }'
    done
}

# Every connection is answered after what was done, $1.
all_go_on() {
    local number before
    for number in "${!HOLDERS[@]}"; do
        before=$(wc -l <"$SCRATCH/held$number")
        until_true 30 "${HOLDERS[number]#*|} goes on, $1" goes_on "$number" "$before" ||
            tail -n 1 "$SCRATCH/held$number"
    done
}

# The first line after it may be of answers before it.
goes_on() {
    [ "$(wc -l <"$SCRATCH/held$1")" -gt $(($2 + 1)) ]
}

# Every connection goes on, none was reset, and each is ended here.
load_survived() {
    local number what code
    if [ -n "${RESETS:-}" ]; then
        same "connections that were reset" "$RESETS" "$(resets "$LOAD_FROM" "$LOAD_TO" node1 mallory)"
    fi
    for number in "${!HOLDERS[@]}"; do
        what=${HOLDERS[number]#*|}
        code=0
        kill -TERM "${HOLDERS[number]%%|*}" 2>/dev/null || true
        wait "${HOLDERS[number]%%|*}" || code=$?
        equal "$what: exit code" 0 "$code"
        say "$what: $(tail -n 1 "$SCRATCH/held$number")"
    done
    HOLDERS=()
}

# start_datagrams FROM TO: 500 a second from one pod to another.
start_datagrams() {
    local to
    to=$(address_of "$2" "${FAMILIES[0]}")
    start_in "$2" python3 "$TOOLS/steady.py" serve "$to" 9000 >/dev/null
    ANSWERING=$PID
    until_true 10 "$2 answers datagrams" is_bound "$2" udp 9000
    start_in "$1" python3 "$TOOLS/steady.py" send '' 9001 "$to" 9000 500 >"$SCRATCH/datagrams"
    SENDING=$PID
    until_true 10 "$1 sends datagrams" is_bound "$1" udp 9001
}

# stop_datagrams: how many were sent, into SENT, and how many of them were not answered, into LOST.
stop_datagrams() {
    stop "$SENDING"
    stop "$ANSWERING"
    read -r SENT LOST < <(sed -nE 's/^([0-9]+) sent, ([0-9]+) answered$/\1 \2/p' "$SCRATCH/datagrams")
    [ -n "${SENT:-}" ] || die "steady.py: $(cat "$SCRATCH/datagrams")"
    LOST=$((SENT - LOST))
    say "$LOST of $SENT datagrams were not answered; $(tail -n +2 "$SCRATCH/datagrams" | paste -sd ' ' | cut -c -300)"
}
