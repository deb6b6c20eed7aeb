#!/usr/bin/env bash
# What comes up goes down without a trace, also when its every process was killed and when it is half there; `tartan
# cleanup` leaves nothing on a node whose agent is gone, by a signal or a kill. A namespace that `up` did not make
# stays, whatever its name. Every other lab shows that one up and down leaves nothing.
#
# `lab down` compares links, addresses, routes, rules, filters, nftables, sysctls, namespaces, processes and files of
# the host with those before `up`. lab_census.sh OPTION...: of `scripts/lab up`, or of an agent as in every test
# case: --inside dual --outside v6
# full: --backend udp
# full: kernel-path=stateless device-type=tap
# full: kernel-path=auto
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

OPTIONS=("$@")

# What a node holds; its own place in the underlay's address plan, $2, and link-local addresses are left out. mallory
# never had an agent: it shows what a node is like without one.
node_facts() {
    ip -n "$PREFIX-$1" -j link show | jq -r '.[] | "link \(.ifname)"'
    {
        ip -n "$PREFIX-$1" -j address show | jq -r '.[] | .ifname as $i | .addr_info[] | "address \($i) \(.local)"'
        ip -n "$PREFIX-$1" -4 route show table all
        ip -n "$PREFIX-$1" -6 route show table all
    } | sed -E "s/(192\.0\.2\.|2001:db8:192::)$2\\b/\1HOST/g; s/fe80::[0-9a-f:]+/LINK-LOCAL/g" | sort
    ip -n "$PREFIX-$1" rule show
    ip -n "$PREFIX-$1" -6 rule show
    in_ns "$1" nft list ruleset
    tc -n "$PREFIX-$1" qdisc show dev eth0 | grep -E 'clsact|ingress'
    in_ns "$1" sysctl -a 2>/dev/null | grep -E '^net\.ipv[46]\.(conf|ip_forward|neigh)' |
        grep -vE 'stable_secret|base_reachable'
}

# bpf_objects held NODE, or alive: as scripts/lab.d/bpf_objects.py.
bpf_objects() {
    python3 "$SCRIPTS/lab.d/bpf_objects.py" "$1" ${2:+"$PREFIX-$2"}
}

no_objects() {
    [ -z "$(bpf_objects alive <<<"$1")" ]
}

no_process() {
    [ -z "$(ip netns pids "$PREFIX-$1")" ]
}

# clean NODE SIGNAL: takes its pods off as a runtime does, ends the agent, and then every trace of it.
clean() {
    local node=$1 objects
    objects=$(bpf_objects held "$node")
    [ "$KERNEL_PATH" = off ] || [ -n "$objects" ] || fail "$node held no BPF program: nothing is shown by their end"
    lab detach "$node"
    kill "-$2" "$(cat "$LAB_STATE/$node/pid")" "$(service_pid "$node")"
    until_true 10 "the agent of $node ends" no_process "$node"
    tartan "$node" cleanup || fail "tartan cleanup on $node ended with code $?"
    same "what $node holds after SIG$2 and cleanup, against a node that never had an agent" \
        "$(node_facts mallory 250)" "$(node_facts "$node" "${node#node}")"
    until_true 5 "no BPF object of $node is left" no_objects "$objects"
    # The kernel's own files in a BPF file system are no pins (kernel/bpf/preload).
    equal "files that cleanup left on $node" '' "$(find "$LAB_STATE/$node" -type f \
        ! -name net-conf.json ! -name nodes.toml ! -name log ! -name pid ! -path '*/sys/fs/bpf/*.debug')"
    tartan "$node" cleanup || fail "a second cleanup on $node ended with code $?"
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

say "cleanup on a node; what up did not make stays"
lab_up "${OPTIONS[@]}"
clean node1 TERM
clean node2 KILL
# Another's, by a name of this prefix; and one that has taken the name of one of the lab's. (An interrupted run may have
# left it.)
ip netns delete "$PREFIX-other" 2>/dev/null || true
ip netns add "$PREFIX-other"
ip netns delete "$PREFIX-mallory"
ip netns add "$PREFIX-mallory"
ip netns exec "$PREFIX-other" sleep 1000 &
THEIRS=$!
STARTED+=("$THEIRS")
lab down
for SPACE in other mallory; do
    [ -e "/run/netns/$PREFIX-$SPACE" ] || fail "down has removed $PREFIX-$SPACE, which up did not make"
done
kill -0 "$THEIRS" || fail "down has ended a process in $PREFIX-other"
# It is in the way of a next lab where it has the name of a namespace that up makes.
if "$SCRIPTS/lab" up --prefix "$PREFIX" >"$SCRATCH/refused" 2>&1; then fail "up took over $PREFIX-mallory"; fi
grep -q "$PREFIX-mallory exists" "$SCRATCH/refused" ||
    fail "up does not say what is in its way: $(cat "$SCRATCH/refused")"
[ -e "/run/netns/$PREFIX-mallory" ] || fail "up has removed $PREFIX-mallory"
ip netns delete "$PREFIX-mallory"
lab down
stop "$THEIRS"
ip netns delete "$PREFIX-other"

say "killed, and half there"
lab_up "${OPTIONS[@]}"
start_in pod1 sleep 1000
# shellcheck disable=SC2046
kill -KILL $(ip netns pids "$PREFIX-node1")
ip netns delete "$PREFIX-pod2"
rm "$LAB_STATE/pods"
down_ends_all
