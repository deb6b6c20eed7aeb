#!/usr/bin/env bash
# With kernel-path = auto a peer that is gone, or whose address or pods' addresses become another's in the list of
# nodes, ends its flows: who has the address next gets the packets, and nothing else passes.
# labs: kernel-path=auto registry=file third=tartan
. "$TOOLS/kernel_path.sh"
. "$TOOLS/cni.sh"

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

# list_of NODE PROGRAM: an awk program changes the entries of the node's list, as a whole, as an editor does; until
# list_back NODE.
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

# arrived: datagrams that have come to the servers of pod3 and pod1.
arrived() {
    local pod
    for pod in pod3 pod1; do
        in_ns "$pod" nft -j list counter ip arrived came | jq '.nftables[].counter | values | .packets'
    done
}

# changed WHAT PROGRAM [POD]: node1's list changes. From the moment on that it has published its tables none of two
# hundred datagrams passes between pod1 and pod3, and they reach the pod. Then the list is as before.
changed() {
    local version installed before
    version=$(agent_json node1 status | jq .kernel_path.tables)
    list_of node1 "$2"
    until_true 5 "$1: node1's programs follow" status_has node1 ".kernel_path.tables > $version"
    before=$(arrived)
    a_while pod1 Out 400
    if [ -n "${3:-}" ]; then a_while "$3" In; fi
    equal "$1: datagrams that pod3 and pod1 have, as before" "$before" "$(arrived)"
    installed=$(flows node1 installed)
    list_back node1
    until_true 10 "flows both ways are installed again" more_than $((installed + 1)) flows node1 installed
    until_true 10 "the stack is left out" is_short
}

for POD in pod1 pod3; do
    in_ns "$POD" nft "add table ip arrived; add counter ip arrived came
        add chain ip arrived input { type filter hook input priority 0; }
        add rule ip arrived input udp dport 9000 counter name came"
    undo in_ns "$POD" nft delete table ip arrived
done
start_datagrams pod1 pod3
start_datagrams pod3 pod1
until_true 10 "flows both ways leave the stack out" is_short
changed "node2 is no peer any more" '!/"node2"/'
changed "node2's address is another node's" "$OTHER"
undo list_back node3
list_of node3 "$MOVED"
until_true 10 "node3 has the subnet of node2" status_has node3 '.subnets | index("10.244.2.0/24")'
new_pods elsewhere
CNI_ARGS="IgnoreUnknown=1;IP=$(address_of pod3 4)" attach node3 elsewhere
serve elsewhere
changed "pod3's address is another pod's, on node3" "$MOVED" elsewhere
