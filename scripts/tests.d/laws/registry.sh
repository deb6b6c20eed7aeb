#!/usr/bin/env bash
# Whatever becomes of the registry, forwarding goes on: no datagram between pods is lost, no node changes an address, no
# daemon is started anew. Each node reports `registry-lost` while it is away, and follows it once it answers again:
# after a stop, and after it came back empty and then as it was. With --full also while etcd is full. (That a silent one
# is noticed, and what was compacted away or lost for good is written again, cargo's tests of each registry show.)
# labs: registry=etcd
# labs: registry=kubernetes inside=dual
# full: registry=kubernetes
# last: it stops the registry
# seconds: 400
. "$TOOLS/registry.sh"

SAVED=$SCRATCH/saved

# A record that is written now is in force, and one that is deleted no longer.
followed() {
    registry write 99
    until_true "$BACK_WITHIN" "all nodes have what is new, and no problem" on_all follows 99
    registry delete 99
    until_true "$FOLLOWED_WITHIN" "all nodes have seen it go" on_all knows_not 99
}

follows() {
    knows "$@" && no_problem "$1"
}

# etcd refuses what is written. A service that starts has its record and writes none; a node that joins says why it has
# none, and joins once there is space.
full() {
    local junk i joining
    undo cp "$SCRATCH/settings" "$LAB_STATE/settings"
    cp "$LAB_STATE/settings" "$SCRATCH/settings"
    sed -i 's/ACQUIRE=.*/ACQUIRE="1"/' "$LAB_STATE/settings"
    registry stop
    registry start -- --quota-backend-bytes=2097152
    junk=$(head -c 400000 /dev/zero | tr '\0' x)
    for ((i = 0; i < 20; i++)); do
        printf '%s' "$junk" | etcdctl put "/junk/$i" >/dev/null 2>&1 || break
    done
    grep -q NOSPACE <<<"$(etcdctl alarm list)" || fail "etcd has no alarm: $(etcdctl alarm list)"
    until_true "$BACK_WITHIN" "no node has a problem" on_all no_problem
    kill -KILL "$(service_pid node2)"
    until_true 5 "a new service on node2" no_problem node2
    lab join >"$SCRATCH/join" 2>&1 &
    joining=$!
    STARTED+=("$joining")
    until_true 10 "node4 says why it has no subnet" grep -qiE 'space|refuse' "$LAB_STATE/node4/log"
    etcdctl del --prefix /junk/ >/dev/null
    etcdctl compact --physical "$(etcdctl get / -w json | jq .header.revision)" >/dev/null
    etcdctl defrag >/dev/null
    etcdctl alarm disarm >/dev/null
    wait "$joining" || fail "node4 does not join once there is space: $(cat "$SCRATCH/join")"
    lab leave node4
    registry restore "$SAVED"
    followed
}

BEFORE=$(agents "${TARTAN[@]}")
registry save "$SAVED"
answering pod3 pod5
for FAMILY in "${FAMILIES[@]}"; do
    steady pod1 pod3 "$FAMILY"
    steady pod3 pod5 "$FAMILY"
done
registry stop
until_true 30 "all nodes report registry-lost" on_all has_problem registry-lost
sleep "${FULL:+3}1"
registry start
followed
# Nothing is withdrawn, though the registry says that there is no node.
registry wipe
until_true 10 "all nodes have read it empty" on_all has_problem leases-refused
for NODE in "${TARTAN[@]}"; do equal "peers of $NODE" 2 "$(agent_json "$NODE" peers | jq '.peers | length')"; done
registry restore "$SAVED"
until_true "$BACK_WITHIN" "no node has a problem" on_all no_problem
none_lost 0
same "daemons and addresses of all nodes" "$BEFORE" "$(agents "${TARTAN[@]}")"
if [ -n "${FULL:-}" ] && [ "$REGISTRY" = etcd ]; then
    steady pod1 pod5 4
    full
    none_lost 0
fi
