#!/usr/bin/env bash
# Nodes that learn of each other from etcd or from Kubernetes: what changes there is followed within two seconds, by
# daemons that are not started anew; and whatever becomes of the registry, forwarding goes on.
#
#   pod1 ── node1 ══ underlay ══ node2 ── pod2
#                       ╠═══════ node3 ── pod3      with `changes` a kernel VXLAN device, else Tartan
#                       ╚═══════ registry
#
# registry.sh WHAT REGISTRY INSIDE [SECONDS], where INSIDE is v4 or dual, of both pods and underlay
#   changes    nodes join, leave, crash, move, get another MAC; records are deleted
#   away       the registry is stopped for SECONDS, and comes back
#   wiped      it comes back empty, then as it was
#   silent     it does not answer any more: its process is stopped, then its network
#   cut        one node does not reach it, and what it has missed is compacted (etcd)
#   full       etcd has no space left and refuses what is written
#   secure     etcd with TLS, certificates of clients, users and passwords
# alone: it measures pauses
# case: changes etcd dual
# case: changes kubernetes v4
# case: away etcd v4 30
# case: wiped etcd v4
# case: cut etcd v4
# case: secure etcd v4
# full: changes etcd v4
# full: changes kubernetes dual
# full: away etcd dual 300
# full: away kubernetes v4 300
# full: wiped kubernetes v4
# full: silent etcd v4
# full: silent kubernetes v4
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
# Of a core, hundredths, while the registry is away.
MOST_OF_A_CORE=2
# Milliseconds, while a service is started after a crash.
LARGEST_GAP=1000

up() {
    lab_up --nodes 3 --registry "$REGISTRY" --inside "$INSIDE" --outside "$INSIDE" "$@"
    for node in node1 node2; do until_true 5 "all is well on $node" all_well "$node"; done
    BEFORE1=$(agent_pids node1)
    BEFORE2=$(agent_pids node2)
}

# No daemon was started anew. (A crash of node2's service is another one's test.)
same_daemons() {
    equal "keeper and service of node1" "$BEFORE1" "$(agent_pids node1)"
    equal "keeper and service of node2" "$BEFORE2" "$(agent_pids node2)"
}

# What the registry holds of the node with that IPv4 address.
record_of() {
    registry leases | jq -c --arg address "192.0.2.$1" 'select(.public4 == $address)'
}

changes() {
    local options=(--peer kernel-vxlan)
    [ "$REGISTRY" != etcd ] || options+=(--acquire)
    up "${options[@]}"
    joining
    leaving
    moving
    another_mac
    gone_and_back
    same_daemons
    crash
    for node in node1 node2; do
        until_true 5 "all is well on $node in the end" all_well "$node"
        law_one "$node"
    done
}

joining() {
    local moment family
    say "a node joins"
    lab join >/dev/null
    moment=$(now)
    for family in $(families "$INSIDE"); do
        watch_path "joined$family" pod1 pod4 "$family"
        watch_path "back$family" pod4 pod2 "$family"
        watch_path "kernel$family" pod4 pod3 "$family"
    done
    for family in $(families "$INSIDE"); do
        soon "until pod1 reaches the new node's pod (IPv$family)" answer "joined$family" "$moment"
        soon "until the new pod reaches pod2 (IPv$family)" answer "back$family" "$moment"
        soon "until the new pod reaches the kernel node's (IPv$family)" answer "kernel$family" "$moment"
    done
}

leaving() {
    local moment family
    say "it leaves: its record is deleted"
    lab leave node4
    moment=$(now)
    for family in $(families "$INSIDE"); do
        soon "until pod1 is told that there is no such pod (IPv$family)" refusal "joined$family" "$moment"
        unwatch "joined$family"
    done
    equal "peers of node1" 2 "$(agent_json node1 peers | jq '.peers | length')"
}

# moves FROM TO: node2 gets another address and loses the one that it had.
moves() {
    local family
    # Without this the kernel takes the second address of a subnet away with the first.
    ip netns exec "$PREFIX-node2" sysctl -q -w net.ipv4.conf.all.promote_secondaries=1
    for family in $(families "$INSIDE"); do
        case $family in
        4)
            ip -n "$PREFIX-node2" address add "192.0.2.$2/24" dev eth0
            ip -n "$PREFIX-node2" address delete "192.0.2.$1/24" dev eth0
            ;;
        6)
            ip -n "$PREFIX-node2" address add "2001:db8:192::$2/64" dev eth0 nodad
            ip -n "$PREFIX-node2" address delete "2001:db8:192::$1/64" dev eth0
            ;;
        esac
    done
}

moving() {
    local moment family from=2 to subnets
    subnets=$(own_addresses node2)
    for to in 102 2; do
        say "node2 moves from 192.0.2.$from to 192.0.2.$to"
        for family in $(families "$INSIDE"); do watch_path "moved$family" pod1 pod2 "$family"; done
        sleep 0.3
        moves "$from" "$to"
        moment=$(now)
        for family in $(families "$INSIDE"); do
            soon "until pod1 reaches pod2 at its new address (IPv$family)" answer "moved$family" "$moment"
            unwatch "moved$family"
        done
        [ -n "$(record_of "$to")" ] || fail "the registry has no record of 192.0.2.$to: $(registry leases)"
        [ -z "$(record_of "$from")" ] || fail "the registry still has a record of 192.0.2.$from"
        # The kernel node's agent would have followed by itself.
        registry follow
        from=$to
    done
    same "addresses of node2 after it has moved" "$subnets" "$(own_addresses node2)"
}

# As flanneld after a reboot: its device is made anew, and its record written with the new MAC.
another_mac() {
    local moment mac=02:00:5e:aa:00:03 space=$PREFIX-node3 lease key value
    say "node3, flannel's, gets another MAC"
    watch_path renamed pod1 pod3
    sleep 0.3
    ip -n "$space" link set flannel.1 down
    ip -n "$space" link set flannel.1 address "$mac"
    ip -n "$space" link set flannel.1 up
    registry follow
    moment=$(now)
    case $REGISTRY in
    etcd)
        key=$(record_of 3 | jq -r .key)
        value=$(etcdctl get "$key" --print-value-only | sed "s/02:00:5e:10:00:03/$mac/")
        lease=$(etcdctl lease grant 86400 | awk '{ print $2 }')
        etcdctl put --lease="$lease" "$key" "$value" >/dev/null
        ;;
    kubernetes) kube annotate node3 <<<"backend-data {\"VNI\":1,\"VtepMAC\":\"$mac\"}" ;;
    esac
    soon "until pod1 reaches pod3 at its new MAC" answer renamed "$moment"
    unwatch renamed
}

# Somebody deletes what node2 has written, or its lease ends: it is written again, with the same subnet.
gone_and_back() {
    local moment key lease subnets ways=(deleted)
    subnets=$(own_addresses node2)
    [ "$REGISTRY" != etcd ] || ways+=(revoked)
    for way in "${ways[@]}"; do
        say "the record of node2 is $way"
        watch_path gone pod1 pod2
        sleep 0.3
        moment=$(now)
        case $REGISTRY-$way in
        etcd-deleted) etcdctl del "$(record_of 2 | jq -r .key)" >/dev/null ;;
        etcd-revoked)
            key=$(record_of 2 | jq -r .key)
            lease=$(etcdctl get "$key" -w json | jq '.kvs[0].lease')
            [ "$lease" != null ] || fail "the key of node2 has no lease"
            etcdctl lease revoke "$(printf '%x' "$lease")" >/dev/null
            ;;
        kubernetes-*) printf '%s\n' kube-subnet-manager backend-data public-ip | kube annotate node2 ;;
        esac
        until_true "$FOLLOWED_WITHIN" "the record of node2 is back" has_record 2
        soon "until pod1 reaches pod2 again" answer gone "$(now)"
        at_most "ms: longest pause of the ping" $((FOLLOWED_WITHIN * 1000)) "$(longest_gap gone "$moment")"
        unwatch gone
        same "addresses of node2 after that" "$subnets" "$(own_addresses node2)"
    done
    until_true 5 "all is well on node2" all_well node2
}

has_record() {
    [ -n "$(record_of "$1")" ]
}

# The longest pause in ms between the answers on a path since a moment.
longest_gap() {
    awk -F'[][ ]' -v last="$2" '/bytes from/ && $2 >= last { if ($2 - last > longest) longest = $2 - last; last = $2 }
        END { printf "%d\n", longest * 1000 }' "$SCRATCH/path-$1"
}

# What is in the registry of node2, with the revision of its last change.
written() {
    case $REGISTRY in
    etcd) etcdctl get "$(record_of 2 | jq -r .key)" -w json | jq -c '.kvs[0]' ;;
    kubernetes) kube list | jq -c '.items[] | select(.metadata.name == "node2") | .metadata' ;;
    esac
}

crash() {
    local pid before moment
    say "the service of node2 is killed"
    before=$(written)
    watch_path crashed pod1 pod2
    sleep 0.3
    pid=$(service_pid node2)
    moment=$(now)
    kill -KILL "$pid"
    until_true 5 "another service on node2" another_service "$pid"
    until_true 5 "an answer from pod2" came_since answer crashed "$(now)"
    at_most "ms: longest pause of the ping" "$LARGEST_GAP" "$(longest_gap crashed "$moment")"
    grep -q Unreachable "$SCRATCH/path-crashed" && fail "node2 was withdrawn: $(grep -m1 Unreachable "$SCRATCH/path-crashed")"
    sleep 1
    same "what the registry holds of node2, and its revision" "$before" "$(written)"
    unwatch crashed
}

another_service() {
    [ "$(service_pid node2)" != "$1" ] && tartan node2 status
}

away() {
    local before node ran
    up
    before=$(for node in node1 node2 node3; do own_addresses "$node"; done)
    # node3 forwards nothing: what it takes of a core is for the registry.
    steady between pod1 pod2 $((LASTS + 15))
    [ "$INSIDE" = v4 ] || steady between6 pod1 pod2 $((LASTS + 15)) 6
    sleep 1
    say "the registry is stopped"
    registry stop
    for node in node1 node2 node3; do
        until_true "$NOTICED_WITHIN" "$node says that the registry is lost" has_problem "$node" registry-lost
    done
    say "$(problem node1 registry-lost)"
    sleep $((LASTS / 3))
    ran=$(agent_time node3)
    sleep 10
    ran=$(($(agent_time node3) - ran))
    at_most "hundredths of a second that node3's agent ran in 10 s without the registry" $((MOST_OF_A_CORE * 10)) "$ran"
    [ "$LASTS" -lt 60 ] || sleep $((LASTS - LASTS / 3 - 10))
    registry start
    foreign_joins 99
    for node in node1 node2 node3; do
        until_true "$BACK_WITHIN" "$node has what is new" knows "$node" "$FOREIGN"
        until_true "$BACK_WITHIN" "$node says nothing more of the registry" has_no_problem "$node" registry-lost
    done
    foreign_leaves 99
    until_true "$FOLLOWED_WITHIN" "node1 has seen it go" knows_not node1 "$FOREIGN"
    all_answered between
    [ "$INSIDE" = v4 ] || all_answered between6
    same "addresses of all nodes" "$before" "$(for node in node1 node2 node3; do own_addresses "$node"; done)"
    same_daemons
}

wiped() {
    local before node
    up
    before=$(for node in node1 node2 node3; do own_addresses "$node"; done)
    registry save "$SCRATCH/saved"
    steady there pod1 pod2 25
    steady back pod3 pod1 25
    say "the registry starts with nothing in it"
    registry wipe
    sleep 4
    for node in node1 node2 node3; do equal "peers of $node" 2 "$(agent_json "$node" peers | jq '.peers | length')"; done
    say "then with what it held"
    registry restore "$SCRATCH/saved"
    foreign_joins 99
    for node in node1 node2 node3; do until_true "$BACK_WITHIN" "$node has what is new" knows "$node" "$FOREIGN"; done
    foreign_leaves 99
    for node in node1 node2 node3; do
        until_true "$FOLLOWED_WITHIN" "$node has seen it go" knows_not "$node" "$FOREIGN"
        until_true "$BACK_WITHIN" "all is well on $node" all_well "$node"
    done
    all_answered there
    all_answered back
    same "addresses of all nodes" "$before" "$(for node in node1 node2 node3; do own_addresses "$node"; done)"
    same_daemons
}

silent() {
    up
    steady there pod1 pod2 100
    say "the registry's process is stopped"
    registry pause
    until_true "$NOTICED_WITHIN" "node1 says that the registry is lost" has_problem node1 registry-lost
    say "$(problem node1 registry-lost)"
    registry resume
    returned 98
    say "its network is down"
    ip -n "$PREFIX-net" link set registry down
    until_true "$NOTICED_WITHIN" "node1 says that the registry is lost" has_problem node1 registry-lost
    say "$(problem node1 registry-lost)"
    ip -n "$PREFIX-net" link set registry up
    returned 99
    all_answered there
    same_daemons
}

# The registry answers again: node1 follows it.
returned() {
    foreign_joins "$1"
    until_true "$BACK_WITHIN" "node1 has what is new" knows node1 "$FOREIGN"
    until_true "$BACK_WITHIN" "node1 says nothing more of the registry" has_no_problem node1 registry-lost
}

cut() {
    up
    steady there pod1 pod2 25
    say "node1 does not reach the registry"
    registry cut node1
    foreign_joins 98
    until_true "$FOLLOWED_WITHIN" "node2 has what is new" knows node2 "$FOREIGN"
    foreign_leaves 98
    foreign_joins 99
    [ "$REGISTRY" != etcd ] || compacted
    until_true "$NOTICED_WITHIN" "node1 says that the registry is lost" has_problem node1 registry-lost
    knows_not node1 "$FOREIGN" || fail "node1 is not cut off"
    registry heal
    until_true "$BACK_WITHIN" "node1 has what it has missed" knows node1 "$FOREIGN"
    knows_not node1 "${FOREIGN/99/98}" || fail "node1 has what had gone before"
    until_true "$BACK_WITHIN" "all is well on node1" has_no_problem node1 registry-lost
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
    up
    steady there pod1 pod2 60
    registry stop
    registry start -- --quota-backend-bytes=2097152
    junk=$(head -c 400000 /dev/zero | tr '\0' x)
    for ((i = 0; i < 20; i++)); do
        printf '%s' "$junk" | etcdctl put "/junk/$i" >/dev/null 2>&1 || break
    done
    etcdctl alarm list | grep -q NOSPACE || fail "etcd has no alarm: $(etcdctl alarm list)"
    say "etcd refuses what is written: $(etcdctl alarm list)"
    until_true "$BACK_WITHIN" "node1 is in touch" has_no_problem node1 registry-lost
    # A service that starts has its record, and writes none.
    kill -KILL "$(service_pid node3)"
    until_true 5 "a new service on node3" tartan node3 status
    # A node that joins cannot have one.
    ip netns exec "$PREFIX-registry" true
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
    up --secure
    for node in node1 node2 node3; do equal "peers of $node" 2 "$(agent_json "$node" peers | jq '.peers | length')"; done
    steady there pod1 pod2 2
    all_answered there
    foreign_joins 99
    until_true "$FOLLOWED_WITHIN" "node1 has what is new" knows node1 "$FOREIGN"
    # A password is nothing for other users of the host to see.
    for node in node1 node2; do
        if tr '\0' ' ' <"/proc/$(service_pid "$node")/cmdline" | grep -q tartan-in-the-lab; then fail "the password is on the command line of $node's service"; fi
    done
    say "another password"
    etcdctl user passwd tartan --interactive=false <<<another-password >/dev/null
    registry stop
    registry start
    until_true "$BACK_WITHIN" "node1 says that it is refused" has_problem node1 registry-lost
    say "$(problem node1 registry-lost)"
    etcdctl user passwd tartan --interactive=false <<<tartan-in-the-lab >/dev/null
    until_true 10 "node1 is in touch again" has_no_problem node1 registry-lost
    same_daemons
}

say "$WHAT: registry $REGISTRY, $INSIDE"
"$WHAT"
