# shellcheck shell=bash
# TCP connections that go on while a node's agent is stopped, killed or replaced: between pods, from the node to a ClusterIP, and
# from outside to a NodePort. The test has set FAMILIES, and PORT and SERVED, at which held.py serves in pod3.

HOLDERS=()

# hold WHAT NAME ADDRESS PORT: a connection that goes on in the background.
hold() {
    hold_from "$1" "$3" "$4" ip netns exec "$PREFIX-$2"
}

# hold_from WHAT ADDRESS PORT CMD...: the same where CMD, which becomes the program, runs it.
hold_from() {
    "${@:4}" python3 "$TOOLS/held.py" hold "$2" "$3" >"$SCRATCH/held${#HOLDERS[@]}" 2>&1 &
    PID=$!
    STARTED+=("$PID")
    HOLDERS+=("$PID|$1")
    until_true 10 "$1 connects" grep -q connected "$SCRATCH/held$((${#HOLDERS[@]} - 1))" || cat "$SCRATCH/held$((${#HOLDERS[@]} - 1))"
}

# service FAMILY KEY: of the Service of pod3.
service() {
    jq -r --arg key "$2" '.[] | select(.name == "lab/pod3" or .name == "pod3") | .[$key]' "$LAB_STATE/services.$1"
}

start_load() {
    local family
    for family in $(families "$FAMILIES"); do
        hold "IPv$family, pod1 to pod3" pod1 "$(address_of pod3 "$family")" "$PORT"
        hold "IPv$family, node1 to the ClusterIP of pod3" node1 "$(service "$family" address)" "$(service "$family" port)"
        hold "IPv$family, client to the NodePort of pod3 at node1" client "$(underlay_of node1 "$family")" "$(service "$family" node_port)"
    done
}

# Whether pod3 serves at every address of SERVED.
serves_all() {
    [ "$(in_ns pod3 ss -Hltn "sport = :$PORT" | wc -l)" -ge "${#SERVED[@]}" ]
}

# resets NAME...: how many connections each namespace has reset, or had reset.
resets() {
    local name
    for name; do
        echo "$name $(in_ns "$name" nstat -asz TcpEstabResets TcpOutRsts TcpExtTCPAbortOnData | awk 'NR > 1 { sum += $2 } END { print sum + 0 }')"
    done
}

# Every connection is answered after what was done, $1.
all_go_on() {
    local number before
    for number in "${!HOLDERS[@]}"; do
        before=$(wc -l <"$SCRATCH/held$number")
        until_true 30 "${HOLDERS[number]#*|} goes on, $1" goes_on "$number" "$before" || tail -n 1 "$SCRATCH/held$number"
    done
}

goes_on() {
    [ "$(wc -l <"$SCRATCH/held$1")" -gt "$2" ]
}

# Every connection goes on, and is ended here.
load_survived() {
    local number what code
    for number in "${!HOLDERS[@]}"; do
        what=${HOLDERS[number]#*|}
        code=0
        kill -TERM "${HOLDERS[number]%%|*}" 2>/dev/null || true
        wait "${HOLDERS[number]%%|*}" || code=$?
        equal "$what: exit code" 0 "$code"
        say "$what: $(tail -n 1 "$SCRATCH/held$number")"
    done
}
