#!/usr/bin/env bash
# A peer that is taken out of the list of nodes, or whose underlay address becomes another node's, with another VTEP MAC
# and another subnet, gets no packet of an installed flow any more, and none of its own is delivered. Where its pods'
# addresses become those of pods of another node, these get the packets, and the old ones none.
# labs: kernel-path=auto registry=file third=tartan
# seconds: 300
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

# Of an entry of a list.
MOVED='/"node2"/ { sub(/10\.244\.2\.0/, "10.244.44.0") }
    /"node3"/ { sub(/subnets = \[/, "&\"10.244.2.0/24\", ") }
    { print }'
OTHER='/"node2"/ {
        sub(/"node2"/, "\"other\"")
        sub(/10\.244\.2\.0/, "10.244.33.0")
        sub(/$/, "\nvtep-mac = \"02:00:00:00:00:33\"")
    }
    { print }'
WHATS=()

# list_of NODE PROGRAM: an awk program changes the entries of the node's list, as a whole, as an editor does; until the
# law's end.
list_of() {
    local list=$LAB_STATE/$1/nodes.toml
    cp "$list" "$SCRATCH/list-$1"
    awk -v RS= -v ORS='\n\n' "$2" "$list" >"$list.new"
    mv "$list.new" "$list"
}

list_back() {
    cp "$SCRATCH/list-$1" "$LAB_STATE/$1/nodes.toml.new"
    mv "$LAB_STATE/$1/nodes.toml.new" "$LAB_STATE/$1/nodes.toml"
}

has_subnet() {
    agent_json "$1" status | jq -e --arg subnet "$2" '.subnets | index($subnet)'
}

tables() {
    agent_json "$1" status | jq .kernel_path.tables
}

# changed WHAT PROGRAM [POD]: node1's list changes. From the moment on that it has published its tables none of a
# hundred datagrams passes between pod1 and pod3, and they reach the pod. Then the list is as before.
changed() {
    local version installed
    WHATS+=("$1")
    version=$(tables node1)
    list_of node1 "$2"
    until_true 5 "$1: node1's programs follow" more_than "$version" tables node1
    mark "$THERE"
    mark "$BACK"
    a_while pod1 Out 200
    if [ -n "${3:-}" ]; then a_while "$3" In; fi
    mark "$THERE"
    mark "$BACK"
    installed=$(flows node1 installed)
    list_back node1
    until_true 10 "flows both ways are installed again" more_than $((installed + 1)) flows node1 installed
    until_true 10 "the stack is left out" is_short node1 node2
}

# passed FILE SENT N: of what was sent between two marks of SENT from the Nth on, how many came, by FILE.
passed() {
    local from to
    from=$(number "$2" "$3")
    to=$(number "$2" $(($3 + 1)))
    echo $((to - from - $(missing "$1" "=$from" "=$to")))
}

FROM=pod1
for NODE in node1 node2; do watch_stack "$NODE"; done
serve pod3 there
SERVERS=("$SERVER")
serve pod1 back
SERVERS+=("$SERVER")
talk pod1 pod3 sent-there 9001 9000
THERE=$SENDER
talk pod3 pod1 sent-back 9002 9000
BACK=$SENDER
until_true 10 "flows both ways are installed on node1" more_than 3 flows node1 installed
until_true 10 "the stack is left out" is_short node1 node2
changed "node2 is no peer any more" '!/"node2"/'
changed "node2's address is another node's" "$OTHER"
undo list_back node3
list_of node3 "$MOVED"
until_true 10 "node3 has the subnet of node2" has_subnet node3 10.244.2.0/24
another_pod node3 pod93 "$(address_of pod3 4)"
serve pod93 elsewhere
SERVERS+=("$SERVER")
changed "pod3's address is another pod's, on node3" "$MOVED" pod93
for PID in "$THERE" "$BACK" "${SERVERS[@]}"; do stop "$PID"; done
for STEP in "${!WHATS[@]}"; do
    equal "${WHATS[STEP]}: datagrams that reached pod3" 0 "$(passed there sent-there $((2 * STEP + 1)))"
    equal "${WHATS[STEP]}: datagrams that reached pod1" 0 "$(passed back sent-back $((2 * STEP + 1)))"
done
at_least "datagrams that reached the pod on node3" 100 "$(awk '$2 == "received" { print $1 }' "$SCRATCH/elsewhere")"
