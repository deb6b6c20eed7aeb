#!/usr/bin/env bash
# With the agent stopped `tartan doctor` finds by itself what would keep it from its work, and `tartan status` says by exit
# code 3 that no agent answers. --fix repairs what is Tartan's, unless another process has the agent's lock, and leaves alone
# what is flannel's. A flanneld beside an agent that has taken its place is found by the running agent.
# labs: registry=file third=tartan device=tun outside=v4
# seconds: 400
# last: it stops the agent
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/faults.sh
. "$TOOLS/faults.sh"

ROOT=$LAB_STATE/node1
read -r FAMILY < <(families "$OUTSIDE")
ADDRESS=$(underlay_of node1 "$FAMILY")
STOPPED="node1 agent-not-running"

on() {
    in_ns node1 "$@"
}

take_port() {
    local port=8472
    if [ "$BACKEND" = udp ]; then port=8285; fi
    start_in node1 python3 -c '
import socket, sys, time
taken = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
taken.bind((sys.argv[1], int(sys.argv[2])))
time.sleep(300)
' "$ADDRESS" "$port"
    until_true 5 "a program has port $port" is_bound node1 udp "$port"
}

# A program by the name of flannel's daemon.
flanneld() {
    cp "$(command -v sleep)" "$SCRATCH/flanneld"
    start_in node1 "$SCRATCH/flanneld" 300
}

flannel() {
    on ip link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
    on ip address add 10.244.1.0/32 dev flannel.1
    flannel_chain node1
}

what_is_flannels() {
    on ip -d link show dev flannel.1
    on ip address show dev flannel.1
    on nft list table ip nat
}

# fixed CODES WORDS...: --fix leaves these findings, and its lines begin with the words.
fixed() {
    local line=0 word
    doctor node1 --fix
    equal "--fix: exit code and codes left" "1 $1" "$(diagnosis node1)"
    for word in "${@:2}"; do
        jq -e --arg word "$word" --argjson line "$line" '.repairs[$line] | startswith($word)' "$SCRATCH/doctor-node1" >/dev/null ||
            fail "line $line of --fix does not say '$word': $(jq -c .repairs "$SCRATCH/doctor-node1")"
        line=$((line + 1))
    done
    equal "--fix: lines" "$line" "$(jq '.repairs | length' "$SCRATCH/doctor-node1")"
}

# without_tun CODE WORDS PREPARATION: /dev/net is prepared so in a mount namespace of the doctor's own.
without_tun() {
    local code=0
    on unshare -m bash -c "$3 && exec setpriv --bounding-set=-mknod --inh-caps=-mknod tartan --root '$ROOT' doctor -o json \
        ${FLAGS[*]}" >"$SCRATCH/doctor-node1" || code=$?
    echo "$code" >"$SCRATCH/code-node1"
    equal "exit code and codes: $3" "1 agent-not-running $1" "$(diagnosis node1)"
    evidence node1 "$1" "$2"
}

undo restart_agents
lab stop node1
FLAGS=(--node-name node1 --node-file "$ROOT/nodes.toml")
fault true true "$STOPPED" "node1 net-conf-refused"
found node1
no_more
FLAGS+=(--net-conf "$ROOT/net-conf.json")
fault true true "$STOPPED"
found node1
doctor node1 --all
jq -e '.others_not_asked | contains("only a running agent")' "$SCRATCH/doctor-node1" >/dev/null || fail "a stopped agent asks others"
without_tun tun-missing "the kernel has the driver" 'mount -t tmpfs none /dev/net'
without_tun tun-denied nodev 'mount -t tmpfs -o nodev none /dev/net && mknod -m 0666 /dev/net/tun c 10 200'

say "a port that another program has, and a flanneld"
FLAGS+=(--replace-flannel)
take_port
fault true "stop $PID KILL" "node1 underlay-port-taken python3"
flanneld
fault true "stop $PID KILL" "node1 flanneld-running flanneld"
found node1

say "what flannel left, and what --fix repairs"
no_more
unset "FLAGS[-1]"
fault flannel "on ip link delete flannel.1 && on nft delete table ip nat" "$STOPPED" "node1 flannel-left-over" \
    "node1 flannel-rules-left"
fault "on sysctl -q -w net.ipv4.ip_forward=0" true "node1 forwarding-off"
fault "foreign_firewall node1" "on nft delete table inet strict" "node1 firewall-cuts-pods-off policy drop of the nft chain inet strict forward"
found node1
FLANNELS=$(what_is_flannels)
start_in node1 flock --no-fork "$ROOT/run/tartan/lock" sleep 300
until_true 5 "another process has the lock" eval "! flock -n '$ROOT/run/tartan/lock' true"
fixed "$(expected node1)" "left alone: another agent"
equal "--fix beside the lock's holder: net.ipv4.ip_forward" 0 "$(on sysctl -n net.ipv4.ip_forward)"
stop "$PID"
until_true 5 "the lock is free" flock -n "$ROOT/run/tartan/lock" true
fixed "agent-not-running flannel-left-over flannel-rules-left" "repaired: set net.ipv4.ip_forward from 0 to 1" \
    "repaired: " "repaired: added accept rules to the nft chain inet strict forward"
equal "after --fix: net.ipv4.ip_forward" 1 "$(on sysctl -n net.ipv4.ip_forward)"
same "what is flannel's, after --fix" "$FLANNELS" "$(what_is_flannels)"
no_more
fault true true "$STOPPED"
found node1

say "a flanneld that is started beside the agent that has taken its place"
no_more
FLAGS=()
env TARTAN_REPLACE_FLANNEL=true "$SCRIPTS/lab" start --prefix "$PREFIX" node1
flanneld
fault true "stop $PID KILL" "node1 flanneld-running process $PID"
found node1
