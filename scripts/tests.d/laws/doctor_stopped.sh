#!/usr/bin/env bash
# With the agent stopped `tartan doctor` finds by itself what would keep it from its work, and `tartan status` says by
# exit code 3 that no agent answers. --fix repairs what is Tartan's, unless another process has the agent's lock, and
# leaves alone what is flannel's. A flanneld beside an agent that has taken its place is found by the running agent.
# labs: registry=file third=tartan device=tun outside=v4
# seconds: 400
# last: it stops the agent
. "$TOOLS/faults.sh"

ROOT=$LAB_STATE/node1
STOPPED="node1 agent-not-running"

on() { in_ns node1 "$@"; }

flannel() {
    on ip link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
    on ip address add 10.244.1.0/32 dev flannel.1
    flannel_chain node1
}

what_is_flannels() {
    on ip -d address show dev flannel.1
    on nft list table ip nat
}

# fixed CODES LINE...: --fix leaves these findings, and its lines begin so.
fixed() {
    doctor node1 --fix
    equal "--fix: exit code and codes left" "1 $1" "$(diagnosis node1)"
    jq -e '[.repairs, $ARGS.positional] | (map(length) | .[0] == .[1]) and (transpose | all(. as [$line, $words]
        | $line | startswith($words)))' --args "${@:2}" <"$SCRATCH/doctor-node1" >/dev/null ||
        fail "the lines of --fix are not ${*:2}: $(jq -c .repairs "$SCRATCH/doctor-node1")"
}

# A program by the name of flannel's daemon.
cp "$(command -v sleep)" "$SCRATCH/flanneld"
undo restart_agents
lab stop node1
FLAGS=(--node-name node1 --node-file "$ROOT/nodes.toml")
fault true true "$STOPPED" "node1 net-conf-refused"
found node1
FLAGS+=(--net-conf "$ROOT/net-conf.json")
doctor node1 --all
equal "without more, and of others" "3 agent-not-running true" "$(diagnosis node1) $(jq \
    '.others_not_asked | contains("only a running agent")' "$SCRATCH/doctor-node1")"

no_more
fault flannel "on ip link delete flannel.1 && on nft delete table ip nat" "$STOPPED" "node1 flannel-left-over" \
    "node1 flannel-rules-left"
fault "on sysctl -q -w net.ipv4.ip_forward=0" true "node1 forwarding-off"
fault "foreign_firewall node1" "on nft delete table inet strict" \
    "node1 firewall-cuts-pods-off policy drop of the nft chain inet strict forward"
found node1
FLANNELS=$(what_is_flannels)
start_in node1 flock --no-fork "$ROOT/run/tartan/lock" sleep 300
until_true 5 "another process has the lock" eval "! flock -n '$ROOT/run/tartan/lock' true"
fixed "$(expected node1)" "left alone: another agent"
equal "--fix beside the lock's holder: net.ipv4.ip_forward" 0 "$(on sysctl -n net.ipv4.ip_forward)"
stop "$PID"
until_true 5 "the lock is free" flock -n "$ROOT/run/tartan/lock" true
fixed "agent-not-running flannel-left-over flannel-rules-left" \
    "repaired: set net.ipv4.ip_forward from 0 to 1" "repaired: " \
    "repaired: added accept rules to the nft chain inet strict forward"
equal "after --fix: net.ipv4.ip_forward" 1 "$(on sysctl -n net.ipv4.ip_forward)"
same "what is flannel's, after --fix" "$FLANNELS" "$(what_is_flannels)"

say "a flanneld beside the agent that is to take its place, where a program has its port, and beside the one that has"
no_more
FLAGS+=(--replace-flannel)
sink node1 "$([ "$BACKEND" = udp ] && echo 8285 || echo 8472)"
fault true "stop $PID KILL" "$STOPPED" "node1 underlay-port-taken tartan-load"
start_in node1 "$SCRATCH/flanneld" 300
fault true "stop $PID KILL" "node1 flanneld-running flanneld"
found node1
no_more
FLAGS=()
env TARTAN_REPLACE_FLANNEL=true "$SCRIPTS/lab" start --prefix "$PREFIX" node1
start_in node1 "$SCRATCH/flanneld" 300
fault true "stop $PID KILL" "node1 flanneld-running process $PID"
found node1
