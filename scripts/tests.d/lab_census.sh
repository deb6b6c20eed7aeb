#!/usr/bin/env bash
# What comes up goes down without a trace: a lab up and down, a lab whose every process was killed, a lab
# half way up, and `tartan cleanup` on a node whose agent is gone.
#
# It takes nothing else with it: a namespace that `up` did not make stays, whatever its name.
#
# `lab down` compares links, addresses, routes, rules, filters, nftables, sysctls, namespaces, processes and files
# of the host with those before `up`; here it must do so after every kind of end.
# lab_census.sh BACKEND [INSIDE OUTSIDE], where INSIDE and OUTSIDE are v4, v6 or dual: the families of pods and of the
# underlay.
# full: udp
# full: vxlan
# case: vxlan dual v6
# full: vxlan kernel-path=auto
# full: vxlan v4 v4 kernel-path=stateless device-type=tap
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

BACKEND=$1
INSIDE=${2:-v4}
OUTSIDE=${3:-v4}

keeper_pid() {
    cat "$LAB_STATE/$1/pid"
}

# What a host of the lab holds, its own place in the underlay's address plan, $2, left out, and the link-local
# addresses that the kernel invents. mallory never had an agent: it shows what a node is like without one.
host_facts() {
    ip -n "$PREFIX-$1" -j link show | jq -r '.[] | "link \(.ifname)"'
    {
        ip -n "$PREFIX-$1" -j address show | jq -r '.[] | .ifname as $i | .addr_info[] | "address \($i) \(.local)"'
        ip -n "$PREFIX-$1" -4 route show table all
        ip -n "$PREFIX-$1" -6 route show table all
    } | sed -E "s/(192\.0\.2\.|2001:db8:192::)$2\\b/\1HOST/g; s/fe80::[0-9a-f:]+/LINK-LOCAL/g" | sort
    ip -n "$PREFIX-$1" rule show
    ip -n "$PREFIX-$1" -6 rule show
    ip netns exec "$PREFIX-$1" nft list ruleset
    filters "$1"
    ip netns exec "$PREFIX-$1" sysctl -a 2>/dev/null | grep -E '^net\.ipv[46]\.(conf|ip_forward|neigh)' |
        grep -vE 'stable_secret|base_reachable'
}

# What its devices have of qdiscs for filters, and which filters.
filters() {
    local device hook
    tc -n "$PREFIX-$1" qdisc show | sed -nE 's/^qdisc (clsact|ingress) [^ ]+ dev ([^ ]+).*/\2/p' | sort -u | while read -r device; do
        echo "qdisc $device"
        for hook in ingress egress; do tc -n "$PREFIX-$1" filter show dev "$device" "$hook"; done
    done
}

# bpf_objects held NODE, or alive: as scripts/lab.d/bpf_objects.py.
bpf_objects() {
    python3 "$SCRIPTS/lab.d/bpf_objects.py" "$1" ${2:+"$PREFIX-$2"}
}

# Removes the pods of a node as a runtime does, then the agent, by the signal $2, then every trace.
clean_node() {
    local node=$1 left objects
    objects=$(bpf_objects held "$node")
    "$SCRIPTS/lab" detach --prefix "$PREFIX" "$node"
    kill "-$2" "$(keeper_pid "$node")" "$(service_pid "$node")"
    until_true 10 "the agent of $node ends" agent_gone "$node"
    tartan "$node" cleanup || fail "tartan cleanup on $node ended with code $?"
    same "what $node holds after SIG$2 and cleanup, against a host that never had an agent" \
        "$(host_facts mallory 250)" "$(host_facts "$node" "${node#node}")"
    case $(agents_option kernel-path) in
    stateless | auto) [ -n "$objects" ] || fail "$node held no BPF program: nothing is shown by their end" ;;
    esac
    until_true 5 "no BPF object of $node is left" no_objects "$objects"
    # The kernel's own files in a BPF file system are no pins (kernel/bpf/preload).
    left=$(find "$LAB_STATE/$node" -mindepth 1 ! -name net-conf.json ! -name nodes.toml ! -name log ! -name pid \
        ! -path "*/sys/fs/bpf/*.debug" -type f)
    equal "files that cleanup left on $node" '' "$left"
    tartan "$node" cleanup || fail "a second cleanup on $node ended with code $?"
}

no_objects() {
    [ -z "$(bpf_objects alive <<<"$1")" ]
}

agent_gone() {
    [ -z "$(ip netns pids "$PREFIX-$1")" ]
}

# Every process of the lab, as ip lists them and not the lab itself.
residents() {
    local space
    for space in $(ip netns list | awk -v prefix="$PREFIX-" 'index($1, prefix) == 1 { print $1 }'); do
        ip netns pids "$space"
    done
}

# Takes the lab down; none of its processes may live on. One that ended and was not collected has no namespace.
down_ends_all() {
    local pid pids lives=0
    pids=$(residents)
    [ -n "$pids" ] || fail "the lab had no process: nothing is shown by its end"
    lab down
    for pid in $pids; do
        if readlink "/proc/$pid/ns/net" >/dev/null; then lives=$((lives + 1)); fi
    done
    equal "of $(wc -w <<<"$pids") processes of the lab live on" 0 "$lives"
}

say "nothing is left: backend $BACKEND, inside $INSIDE, outside $OUTSIDE"
for round in 1 2; do
    say "up and down, round $round"
    lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE" --pods 2
    start_in pod3 sleep 1000
    down_ends_all
done
lab down

say "what up did not make stays"
lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
# Of somebody else, by a name of this prefix; and one that has taken the name of one of the lab's.
# (An interrupted run of this test left it.)
ip netns delete "$PREFIX-other" 2>/dev/null || true
ip netns add "$PREFIX-other"
ip -n "$PREFIX-other" link add theirs type bridge
ip netns delete "$PREFIX-mallory"
ip netns add "$PREFIX-mallory"
ip netns exec "$PREFIX-other" sleep 1000 &
THEIRS=$!
STARTED+=("$THEIRS")
lab down
for space in other mallory; do
    [ -e "/run/netns/$PREFIX-$space" ] || fail "down has removed $PREFIX-$space, which up did not make"
done
ip -n "$PREFIX-other" link show theirs >/dev/null || fail "the device of $PREFIX-other is gone"
kill -0 "$THEIRS" || fail "down has ended a process in $PREFIX-other"
# Neither is it in the way of a next lab, but where it has the name of a namespace that up makes.
if "$SCRIPTS/lab" up --prefix "$PREFIX" >"$SCRATCH/refused" 2>&1; then fail "up took over $PREFIX-mallory"; fi
grep -q "$PREFIX-mallory exists" "$SCRATCH/refused" || fail "up does not say what is in its way: $(cat "$SCRATCH/refused")"
[ -e "/run/netns/$PREFIX-mallory" ] || fail "up has removed $PREFIX-mallory"
ip netns delete "$PREFIX-mallory"
lab down
kill "$THEIRS"
ip netns delete "$PREFIX-other"

say "every process killed"
lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
for node in node1 node2; do
    # shellcheck disable=SC2046
    kill -KILL $(ip netns pids "$PREFIX-$node")
done
lab down

say "half way up: no agent, a namespace missing"
lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
kill -KILL "$(keeper_pid node1)"
ip netns delete "$PREFIX-pod2"
rm "$LAB_STATE/pods"
down_ends_all

say "cleanup on a node"
lab_up --backend "$BACKEND" --inside "$INSIDE" --outside "$OUTSIDE"
clean_node node1 TERM
clean_node node2 KILL
