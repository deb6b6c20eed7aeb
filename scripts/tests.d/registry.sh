#!/usr/bin/env bash
# Nodes that learn of each other from etcd or from Kubernetes: whatever becomes of the registry, forwarding goes on, no
# daemon is started anew, and a registry that is back is followed within five seconds.
#
#   pod1 ── node1 ══ underlay ══ node2 ── pod2
#                       ╠═══════ node3 ── pod3
#                       ╚═══════ registry
#
# registry.sh WHAT REGISTRY INSIDE [SECONDS], where INSIDE is v4 or dual, of both pods and underlay
#   away       the registry is stopped for SECONDS, and comes back
#   wiped      it comes back empty, then as it was
#   emptied    it comes back empty for good, and the cluster's configuration is written again (etcd)
#   silent     it does not answer any more: its process is stopped, then its network
#   cut        one node does not reach it, and what it has missed is compacted (etcd)
#   full       etcd has no space left and refuses what is written
#   secure     etcd with TLS, certificates of clients, users and passwords
# alone emptied: it measures pauses of milliseconds
# case: away etcd v4 30
# case: secure etcd v4
# full: away etcd dual 300
# full: away kubernetes v4 300
# full: wiped etcd v4
# full: wiped kubernetes v4
# full: emptied etcd v4
# full: silent etcd v4
# full: silent kubernetes v4
# full: cut etcd v4
# full: cut kubernetes dual
# full: full etcd v4
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/registry.sh
. "$TOOLS/registry.sh"

WHAT=$1
REGISTRY=$2
INSIDE=$3
LASTS=${4:-0}
# Seconds within which a node is in touch with a registry that is back, and says that one does not answer.
BACK_WITHIN=5
NOTICED_WITHIN=30
# Of a core, hundredths, while the registry is away.
MOST_OF_A_CORE=2

away() {
    local before node ran end
    registry_lab
    before=$(for node in node1 node2 node3; do own_addresses "$node"; done)
    # node3 forwards nothing: what it takes of a core is for the registry.
    steady between pod1 pod2 $((LASTS + 5))
    [ "$INSIDE" = v4 ] || steady between6 pod1 pod2 $((LASTS + 5)) 6
    sleep 1
    say "the registry is stopped"
    registry stop
    end=$(($(clock) + LASTS * 100))
    for node in node1 node2 node3; do
        within "$NOTICED_WITHIN" "$node says that the registry is lost" has_problem "$node" registry-lost
    done
    say "$(problem node1 registry-lost)"
    # The pauses between two attempts have grown.
    sleep 15
    ran=$(agent_time node3)
    sleep 10
    ran=$(($(agent_time node3) - ran))
    measured_at_most "hundredths of a second that node3's agent ran in 10 s without the registry" $((MOST_OF_A_CORE * 10)) "$ran"
    while [ "$(clock)" -lt "$end" ]; do sleep 0.1; done
    registry start
    foreign_joins 99
    for node in node1 node2 node3; do
        within "$BACK_WITHIN" "$node has what is new" knows "$node" "$FOREIGN"
        within "$BACK_WITHIN" "$node says nothing more of the registry" has_no_problem "$node" registry-lost
    done
    foreign_leaves 99
    within "$FOLLOWED_WITHIN" "node1 has seen it go" knows_not node1 "$FOREIGN"
    all_answered between
    [ "$INSIDE" = v4 ] || all_answered between6
    same "addresses of all nodes" "$before" "$(for node in node1 node2 node3; do own_addresses "$node"; done)"
    same_daemons
}

wiped() {
    local before node
    registry_lab
    before=$(for node in node1 node2 node3; do own_addresses "$node"; done)
    registry save "$SCRATCH/saved"
    steady there pod1 pod2 12
    steady back pod3 pod1 12
    say "the registry starts with nothing in it"
    registry wipe
    sleep 3
    for node in node1 node2 node3; do equal "peers of $node" 2 "$(agent_json "$node" peers | jq '.peers | length')"; done
    say "then with what it held"
    registry restore "$SCRATCH/saved"
    foreign_joins 99
    for node in node1 node2 node3; do within "$BACK_WITHIN" "$node has what is new" knows "$node" "$FOREIGN"; done
    foreign_leaves 99
    for node in node1 node2 node3; do
        within "$FOLLOWED_WITHIN" "$node has seen it go" knows_not "$node" "$FOREIGN"
        within "$BACK_WITHIN" "all is well on $node" all_well "$node"
    done
    all_answered there
    all_answered back
    same "addresses of all nodes" "$before" "$(for node in node1 node2 node3; do own_addresses "$node"; done)"
    same_daemons
}

# Nodes that took any subnet have them again. A list that lacks most of the nodes is held back; one that lacks few of them,
# because these are the last to write again, is not.
emptied() {
    local before node nodes=(node1 node2 node3 node4 node5)
    registry_lab --nodes 5 --acquire
    before=$(for node in "${nodes[@]}"; do own_addresses "$node"; done)
    steady there pod1 pod2 12
    steady back pod3 pod1 12
    registry wipe
    sleep 2
    equal "records in the registry" "" "$(registry leases)"
    etcdctl put /coreos.com/network/config '{ "Network": "10.244.0.0/16", "Backend": { "Type": "vxlan" } }' >/dev/null
    for node in 1 2 3 4 5; do within "$BACK_WITHIN" "the record of node$node is there again" has_record "$node"; done
    for node in "${nodes[@]}"; do within "$BACK_WITHIN" "all is well on $node" all_well "$node"; done
    few_lost there
    few_lost back
    for node in "${nodes[@]}"; do equal "peers of $node" 4 "$(agent_json "$node" peers | jq '.peers | length')"; done
    same "addresses of all nodes" "$before" "$(for node in "${nodes[@]}"; do own_addresses "$node"; done)"
    same_daemons
}

silent() {
    registry_lab
    steady there pod1 pod2 70
    say "the registry's process is stopped"
    registry pause
    within "$NOTICED_WITHIN" "node1 says that the registry is lost" has_problem node1 registry-lost
    say "$(problem node1 registry-lost)"
    registry resume
    returned 98
    say "its network is down"
    ip -n "$PREFIX-net" link set registry down
    within "$NOTICED_WITHIN" "node1 says that the registry is lost" has_problem node1 registry-lost
    say "$(problem node1 registry-lost)"
    ip -n "$PREFIX-net" link set registry up
    returned 99
    all_answered there
    same_daemons
}

# The registry answers again: node1 follows it.
returned() {
    foreign_joins "$1"
    within "$BACK_WITHIN" "node1 has what is new" knows node1 "$FOREIGN"
    within "$BACK_WITHIN" "node1 says nothing more of the registry" has_no_problem node1 registry-lost
}

cut() {
    registry_lab
    steady there pod1 pod2 35
    say "node1 does not reach the registry"
    registry cut node1
    foreign_joins 98
    within "$FOLLOWED_WITHIN" "node2 has what is new" knows node2 "$FOREIGN"
    foreign_leaves 98
    foreign_joins 99
    [ "$REGISTRY" != etcd ] || compacted
    within "$NOTICED_WITHIN" "node1 says that the registry is lost" has_problem node1 registry-lost
    knows_not node1 "$FOREIGN" >"$SCRATCH/jq" || fail "node1 is not cut off"
    registry heal
    within "$BACK_WITHIN" "node1 has what it has missed" knows node1 "$FOREIGN"
    knows_not node1 "${FOREIGN/99/98}" >"$SCRATCH/jq" || fail "node1 has what had gone before"
    within "$BACK_WITHIN" "all is well on node1" has_no_problem node1 registry-lost
    all_answered there
    same_daemons
}

compacted() {
    local revision
    revision=$(etcdctl get /coreos.com/network/config -w json | jq .header.revision)
    etcdctl compact --physical "$revision" >/dev/null
}

full() {
    local junk
    # A node that joins is to write its record itself.
    registry_lab --acquire
    steady there pod1 pod2 15
    registry stop
    registry start -- --quota-backend-bytes=2097152
    junk=$(head -c 400000 /dev/zero | tr '\0' x)
    for ((i = 0; i < 20; i++)); do
        printf '%s' "$junk" | etcdctl put "/junk/$i" >/dev/null 2>&1 || break
    done
    grep -q NOSPACE <<<"$(etcdctl alarm list)" || fail "etcd has no alarm: $(etcdctl alarm list)"
    say "etcd refuses what is written: $(etcdctl alarm list)"
    within "$BACK_WITHIN" "node1 is in touch" has_no_problem node1 registry-lost
    # A service that starts has its record, and writes none.
    kill -KILL "$(service_pid node3)"
    until_true 5 "a new service on node3" tartan node3 status
    # A node that joins cannot have one.
    lab join >"$SCRATCH/join" 2>&1 &
    PID=$!
    STARTED+=("$PID")
    sleep 4
    grep -iE 'space|refuse' "$LAB_STATE/node4/log" || fail "node4 does not say why it has no subnet: $(tail -n 5 "$LAB_STATE/node4/log")"
    etcdctl del --prefix /junk/ >/dev/null
    compacted
    etcdctl defrag >/dev/null
    etcdctl alarm disarm >/dev/null
    wait "$PID" || fail "node4 does not join once there is space: $(cat "$SCRATCH/join")"
    all_answered there
    equal "keeper and service of node1" "$BEFORE1" "$(agent_pids node1)"
}

secure() {
    local node
    registry_lab --secure
    for node in node1 node2 node3; do equal "peers of $node" 2 "$(agent_json "$node" peers | jq '.peers | length')"; done
    steady there pod1 pod2 2
    all_answered there
    foreign_joins 99
    within "$FOLLOWED_WITHIN" "node1 has what is new" knows node1 "$FOREIGN"
    # A password is nothing for other users of the host to see.
    for node in node1 node2; do
        if grep -qaF tartan-in-the-lab "/proc/$(service_pid "$node")/cmdline"; then fail "the password is on the command line of $node's service"; fi
    done
    say "another password"
    etcdctl user passwd tartan --interactive=false <<<another-password >/dev/null
    registry stop
    registry start
    within "$BACK_WITHIN" "node1 says that it is refused" is_refused
    say "$(problem node1 registry-lost)"
    etcdctl user passwd tartan --interactive=false <<<tartan-in-the-lab >/dev/null
    within 10 "node1 is in touch again" has_no_problem node1 registry-lost
    same_daemons
}

is_refused() {
    grep -qi 'password' <<<"$(problem node1 registry-lost)"
}

say "$WHAT: registry $REGISTRY, $INSIDE"
"$WHAT"
