#!/usr/bin/env bash
# `tartan doctor`: each fault of a node, one at a time, is found within 10 s, with evidence, remedy and reference, and shown by
# `tartan status`, and is gone from both 10 s after its end; a healthy node has no finding. What is wrong with another node is told
# by that node. First with the agent running, then with it stopped, where the host and the last good state are all there is; what
# --fix repairs and leaves alone. Then a report of the node: whole, bounded, and without the secrets that were planted.
#
#   pod1 ── node1, tartan ══ node2, tartan        with vxlan node3, kernel, as a stock flannel peer
#
# Faults of the way to a peer: path_faults.sh. A podCIDR that is missing: pod_cidr.sh.
#
# doctor.sh INSIDE BACKEND, as in scripts/lab up
# full: v4 vxlan
# full: dual vxlan
# case: dual udp
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/faults.sh
. "$TOOLS/faults.sh"

INSIDE=$1
BACKEND=$2
ROOT=$LAB_STATE/node1
SPACE=$PREFIX-node1
# What the agent was started with: without it a stopped node is judged by the files below etc/tartan.
FLAGS=(--node-name node1 --net-conf "$ROOT/net-conf.json" --node-file "$ROOT/nodes.toml")
SECRET=planted-hunter2-secret

node_ip() { ip -n "$SPACE" "$@"; }
sysctl_of() { in_ns node1 sysctl -q -w "$@"; }

# a_fault WHAT CODES: what was made since `begins`, the agent running.
a_fault() { found node1 "$1" "$2" 1; }

# its_end WHAT: what was ended since `begins`.
its_end() { gone node1 "no more $1"; }

healthy() {
    begins
    gone node1 "$1"
    equal "$1: checks" 16 "$(jq '.checks | length' "$SCRATCH/doctor.json")"
}

# net_conf SED-EXPRESSION: changes node1's, which takes it on SIGHUP.
net_conf() {
    sed -i "$1" "$ROOT/net-conf.json"
    kill -HUP "$(cat "$ROOT/pid")"
}

narrow_underlay() {
    local code=underlay-narrow mtu=590 BESIDE='^peer-'
    begins
    if [ "$BACKEND" = vxlan ]; then
        # A net-conf that names an MTU, which the underlay then falls below.
        code=underlay-below-mtu mtu=1400
        net_conf 's/"Type": "vxlan"/"Type": "vxlan", "MTU": 1500/'
    fi
    # Below 1280 the kernel takes IPv6 off the interface: that is another fault.
    if [ "$BACKEND" = udp ] && [ "$INSIDE" != v4 ]; then mtu=1290; fi
    node_ip link set eth0 mtu "$mtu"
    a_fault "underlay below the configured MTU" "$code"
    evidence eth0
    begins
    node_ip link set eth0 mtu 1500
    if [ "$BACKEND" = vxlan ]; then net_conf 's/, "MTU": 1500//'; fi
    its_end "narrow underlay"
}

# node3_mac MAC: its device has that one, and sends. The kernel forgets the device's neighbours with its MAC.
node3_mac() {
    ip -n "$PREFIX-node3" link set flannel.1 address "$1"
    ip -n "$PREFIX-node3" neighbour replace 10.244.1.0 lladdr "$(vtep_mac_of node1 4)" dev flannel.1 nud permanent
    in_ns pod3 ping -4 -q -c 3 -i 0.1 -W 1 "$(address_of pod1 4)" >/dev/null || true
}

stale_mac() {
    [ "$BACKEND" = vxlan ] || return 0
    begins
    node3_mac 0a:5e:00:00:00:77
    a_fault "stale MAC" vtep-mac-changed
    evidence 0a:5e:00:00:00:77
    begins
    node3_mac "$(vtep_mac_of node3 4)"
    its_end "stale MAC"
}

duplicate_subnet() {
    cp "$ROOT/nodes.toml" "$SCRATCH/nodes.toml"
    begins
    sed 's/10\.244\.2\.0/10.244.1.0/' "$SCRATCH/nodes.toml" | cat >"$ROOT/nodes.toml"
    a_fault "duplicate subnet" leases-refused
    evidence 10.244.1.0/24
    begins
    cat "$SCRATCH/nodes.toml" >"$ROOT/nodes.toml"
    its_end "duplicate subnet"
}

changed_address() {
    local BESIDE='^peer-'
    begins
    # As a /32 it does not go with the other.
    node_ip address add 192.0.2.77/32 dev eth0
    node_ip address del 192.0.2.1/24 dev eth0
    a_fault "changed node address" underlay-interface-missing
    evidence 192.0.2.77
    begins
    node_ip address add 192.0.2.1/24 dev eth0
    node_ip address del 192.0.2.77/32 dev eth0
    its_end "changed node address"
}

flannel_device() {
    begins
    node_ip link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
    node_ip address add 10.244.1.0/32 dev flannel.1
    a_fault "flannel.1 left over" flannel-left-over
    evidence flannel.1
    # The service repairs what is its own; this is not.
    fix_leaves_alone "the agent runs" 1
    node_ip link show dev flannel.1 >/dev/null || fail "--fix has taken flannel.1 away"
    begins
    node_ip link delete flannel.1
    its_end "flannel.1 left over"
}

# Chains of flannel.
flannel_rules_made() {
    in_ns node1 iptables-nft -w -t nat -N FLANNEL-POSTRTG
    in_ns node1 iptables-nft -w -t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
}

flannel_rules() {
    begins
    flannel_rules_made
    a_fault "FLANNEL-POSTRTG left" flannel-rules-left
    evidence "ip nat FLANNEL-POSTRTG"
    begins
    in_ns node1 nft delete table ip nat
    its_end "FLANNEL-POSTRTG left"
}

strict_filter() {
    # Nothing is sent to node2 by that route.
    local BESIDE='^peer-'
    begins
    node_ip link add detour type bridge
    node_ip link set detour up
    node_ip route add 192.0.2.2/32 dev detour
    sysctl_of net.ipv4.conf.eth0.rp_filter=1
    a_fault "strict reverse-path filter" reverse-path-filter
    evidence "192.0.2.2 by detour"
    begins
    sysctl_of net.ipv4.conf.eth0.rp_filter=0
    node_ip link delete detour
    its_end "strict reverse-path filter"
}

# A kernel without br_netfilter has no net.bridge.bridge-nf-call-iptables; where it is built in, as here, that setting is all of
# it that can be taken away, in the node's namespace alone.
bridge_without_netfilter() {
    begins
    node_ip link add cni0 type bridge
    node_ip address add 10.244.1.1/24 dev cni0
    node_ip link set cni0 up
    in_ns node1 nft add table ip kube-proxy
    sysctl_of net.bridge.bridge-nf-call-iptables=0
    a_fault "br_netfilter off" "bridge-netfilter-off mixed-pods"
    evidence "net.bridge.bridge-nf-call-iptables = 0"
    begins
    sysctl_of net.bridge.bridge-nf-call-iptables=1
    in_ns node1 nft delete table ip kube-proxy
    node_ip link delete cni0
    its_end "br_netfilter off"
}

bridge_elsewhere() {
    begins
    node_ip link add cni0 type bridge
    node_ip address add 10.244.9.1/24 dev cni0
    a_fault "cni0 has another address" bridge-other-subnet
    evidence 10.244.9.1/24
    begins
    node_ip link delete cni0
    its_end "cni0 with another address"
}

# Datagrams to node1's port, 100 a second, whose checksum is wrong, as an interface with a broken offload sends them.
wrong_checksums() {
    begins
    start_in mallory python3 -c '
import socket, struct, time
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
datagram = struct.pack("!HHHH", 1234, 8472, 16, 0xdead) + b"\0" * 8
for _ in range(1200):
    raw.sendto(datagram, ("192.0.2.1", 0))
    time.sleep(0.01)
'
    a_fault "broken checksum offload" checksum-errors
    begins
    stop "$PID" KILL
    its_end "broken checksum offload"
}

clock_set_back() {
    begins
    touch -d '+1 hour' "$ROOT/var/lib/tartan/last-good.json"
    a_fault "clock set back" clock-set-back
    evidence "in the future"
    begins
    touch "$ROOT/var/lib/tartan/last-good.json"
    its_end "clock set back"
}

# holds_port PORT: a program has it.
holds_port() {
    start_in node1 python3 -c '
import socket, sys, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind(("192.0.2.1", int(sys.argv[1])))
time.sleep(120)
' "$1"
    until_true 5 "the program has port $1" is_bound node1 udp "$1" || true
}

# The agent runs and is told to take another port, which a program has, as where Cilium has 8472.
port_taken_beside() {
    local BESIDE='^peer-'
    holds_port 18472
    begins
    net_conf "s/\"Type\": \"$BACKEND\"/\"Type\": \"$BACKEND\", \"Port\": 18472/"
    a_fault "another port, which is taken, while the agent runs" underlay-port-taken
    evidence 18472
    begins
    net_conf 's/, "Port": 18472//'
    its_end "port that is taken"
    stop "$PID" KILL
}

# repaired WHAT WORDS BEFORE: within 10 s the service has repaired that by itself, and neither status nor doctor have more to say.
repaired() {
    until_true $((AT_MOST / 100)) "$1: repaired, and status says so" status_says_repaired "$2" "$3" || status_words
    agree node1 "$1: repaired" "" 0 || true
}

status_says_repaired() {
    agent_json node1 status | jq -e --arg words "$1" --argjson before "$2" '.repairs > $before and (.last_repair | contains($words))'
}

status_words() {
    agent_json node1 status | jq -c '{repairs, last_repair, problems}' >&2
}

# The agent runs, and puts it right.
forwarding_off_beside() {
    local before
    before=$(agent_json node1 status | jq .repairs)
    begins
    sysctl_of net.ipv4.ip_forward=0
    repaired "ip_forward 0 while the agent runs" net.ipv4.ip_forward "$before"
    equal "net.ipv4.ip_forward" 1 "$(in_ns node1 sysctl -n net.ipv4.ip_forward)"
}

# forward_drops: a firewall of another program whose policy for what is forwarded is to drop it.
forward_drops() {
    in_ns node1 nft -f - <<'NFT'
table inet strict {
    chain forward { type filter hook forward priority 0; policy drop; }
}
NFT
}

forward_drop_beside() {
    local before
    before=$(agent_json node1 status | jq .repairs)
    begins
    forward_drops
    repaired "FORWARD drops while the agent runs" "inet strict forward" "$before"
    in_ns pod1 ping -4 -q -c 3 -i 0.1 -W 1 "$(address_of pod2 4)" >/dev/null || fail "pods do not reach each other by the accept rules"
    in_ns node1 nft delete table inet strict
}

# fix_leaves_alone WORDS EXIT-CODE ARG...: --fix repairs nothing and says why.
fix_leaves_alone() {
    doctor node1 --fix "${@:3}"
    equal "--fix: exit code" "$2" "$CODE"
    equal "--fix: lines" 1 "$(jq '.repairs | length' "$SCRATCH/doctor.json")"
    jq -e --arg words "$1" '.repairs[0] | startswith("left alone: ") and contains($words)' "$SCRATCH/doctor.json" >/dev/null ||
        fail "--fix does not say '$1': $(jq -c .repairs "$SCRATCH/doctor.json")"
}

# others_say NODE ANSWER...: what `doctor` says of another node, as its codes, or as `?` and the reason.
others_say() {
    CODE=0
    tartan node1 doctor -o json "${@:3}" >"$SCRATCH/doctor.json" || CODE=$?
    [ "$(jq -r --arg node "$1" '.others[] | select(.name == $node) | if .told then [.problems[].code] | sort | join(" ") else "? " + .reason end' \
        "$SCRATCH/doctor.json")" = "$2" ]
}

# Another node's problems, as it says itself; one that runs flannel's vxlan is said not to tell.
other_nodes() {
    until_true 10 "node2 is well" others_say node2 "" --all
    equal "all nodes well: exit code" 0 "$CODE"
    equal "nodes asked" "$((BACKEND_NODES - 1))" "$(jq '.others | length' "$SCRATCH/doctor.json")"
    if [ "$BACKEND" = vxlan ]; then
        until_true 10 "node3 does not tell" others_say node3 "? it answers no probes, as a node that runs flannel" --peer node3
        equal "a node that does not tell: exit code" 0 "$CODE"
    fi
    ip -n "$PREFIX-node2" link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
    ip -n "$PREFIX-node2" address add 10.244.2.0/32 dev flannel.1
    until_true 10 "node2 tells" others_say node2 flannel-left-over --peer node2
    equal "a problem of node2: exit code" 1 "$CODE"
    equal "its subject" flannel.1 "$(jq -r '.others[0].problems[0].subject' "$SCRATCH/doctor.json")"
    tartan node1 doctor --all >"$SCRATCH/doctor.txt" || true
    grep -q 'flannel-left-over (flannel.1)' "$SCRATCH/doctor.txt" || fail "the table does not say it: $(cat "$SCRATCH/doctor.txt")"
    ip -n "$PREFIX-node2" link delete flannel.1
    until_true 10 "node2 is well again" others_say node2 "" --peer node2
    CODE=0
    tartan node1 doctor -o json --peer node99 >"$SCRATCH/doctor.json" || CODE=$?
    equal "no such node: exit code" 1 "$CODE"
    jq -e '.others_not_asked | contains("no peer is called node99")' "$SCRATCH/doctor.json" >/dev/null \
        || fail "no such node: $(jq -c .others_not_asked "$SCRATCH/doctor.json")"
}

# beside_stopped WHAT CODE: found beside that the agent does not answer.
beside_stopped() {
    found node1 "$1, the agent stopped" "agent-not-running $2" 1 "${FLAGS[@]}" "${@:3}"
}

# only_stopped WHAT: nothing but that the agent does not answer.
only_stopped() {
    agree node1 "$1" agent-not-running 3 "${FLAGS[@]}" || true
}

# With the agent stopped: only that, and nothing else is wrong.
stopped() {
    begins
    found node1 "stopped agent" agent-not-running 3 "${FLAGS[@]}" --all
    jq -e '.others_not_asked | contains("only a running agent")' "$SCRATCH/doctor.json" >/dev/null || fail "a stopped agent asks others"
    # By the last good state alone.
    begins
    found node1 "stopped agent, without flags" "agent-not-running net-conf-refused" 1 --node-name node1 --node-file "$ROOT/nodes.toml"
}

port_taken() {
    begins
    holds_port 8472
    beside_stopped "port 8472 taken" underlay-port-taken
    evidence python3
    begins
    stop "$PID" KILL
    only_stopped "no more port 8472 taken"
}

# A program by the name of flannel's daemon.
flanneld_runs() {
    [ -e "$SCRATCH/flanneld" ] || cp "$(command -v sleep)" "$SCRATCH/flanneld"
    start_in node1 "$SCRATCH/flanneld" 120
}

two_daemons() {
    begins
    flanneld_runs
    beside_stopped "two daemons" flanneld-running --replace-flannel
    evidence flanneld
    begins
    stop "$PID" KILL
    only_stopped "no more two daemons"
}

# A flanneld that is started beside a running agent that has taken its place.
two_daemons_beside() {
    begins
    flanneld_runs
    a_fault "two daemons, the agent running" flanneld-running
    evidence "process $PID"
    begins
    stop "$PID" KILL
    its_end "second daemon"
}

forwarding_off() {
    begins
    sysctl_of net.ipv4.ip_forward=0
    beside_stopped "ip_forward 0" forwarding-off
    locked_fix
    fixed "net.ipv4.ip_forward from 0 to 1"
    equal "repaired: net.ipv4.ip_forward" 1 "$(in_ns node1 sysctl -n net.ipv4.ip_forward)"
}

forward_drop() {
    begins
    forward_drops
    beside_stopped "FORWARD drops" firewall-cuts-pods-off
    evidence "policy drop of the nft chain inet strict forward"
    fixed "accept rules to the nft chain inet strict forward"
    begins
    in_ns node1 nft delete table inet strict
    only_stopped "no more FORWARD drops"
}

# fixed WORDS: --fix repairs that, and nothing is left but that the agent does not answer.
fixed() {
    begins
    doctor node1 --fix "${FLAGS[@]}"
    equal "--fix: findings left, exit code" "agent-not-running 3" "$(codes) $CODE"
    jq -r '.repairs[] | "    \(.)"' "$SCRATCH/doctor.json"
    jq -e --arg words "$1" '.repairs | any(contains($words)) and all(startswith("repaired: "))' "$SCRATCH/doctor.json" >/dev/null ||
        fail "--fix has not repaired '$1': $(jq -c .repairs "$SCRATCH/doctor.json")"
    only_stopped "after --fix"
}

# While another has the agent's lock, as one that starts, --fix changes nothing.
locked_fix() {
    start_in node1 flock --no-fork "$ROOT/run/tartan/lock" sleep 120
    until_true 5 "another has the lock" eval "! flock -n '$ROOT/run/tartan/lock' true" || true
    fix_leaves_alone "another agent" 1 "${FLAGS[@]}"
    equal "--fix beside the lock's holder: net.ipv4.ip_forward" 0 "$(in_ns node1 sysctl -n net.ipv4.ip_forward)"
    stop "$PID"
    until_true 5 "the lock is free" flock -n "$ROOT/run/tartan/lock" true || true
}

# What is not Tartan's stays where --fix repairs something: flannel's device and chains, and others' rules.
foreign_stays() {
    local before after
    begins
    node_ip link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
    node_ip address add 10.244.1.0/32 dev flannel.1
    flannel_rules_made
    before=$(foreign)
    sysctl_of net.ipv4.ip_forward=0
    beside_stopped "what flannel left, and ip_forward 0" "flannel-left-over flannel-rules-left forwarding-off"
    doctor node1 --fix "${FLAGS[@]}"
    equal "--fix beside what flannel left: findings, exit code" "agent-not-running flannel-left-over flannel-rules-left 1" "$(codes) $CODE"
    after=$(foreign)
    same "flannel's device and chains after --fix" "$before" "$after"
    begins
    in_ns node1 nft delete table ip nat
    node_ip link delete flannel.1
    only_stopped "nothing of flannel's is left"
}

foreign() {
    node_ip -d link show dev flannel.1
    node_ip address show dev flannel.1
    in_ns node1 nft list table ip nat
}

# without_tun CODE WORDS CMD: a node whose /dev/net is prepared by the command in a mount namespace of its own. No agent can run
# so, and none could make the file: one that lost /dev/net/tun would keep the device that it has open.
without_tun() {
    begins
    CODE=0
    in_ns node1 unshare -m bash -c "${3} && exec setpriv --bounding-set=-mknod --inh-caps=-mknod tartan --root '$ROOT' doctor -o json --node-name node1 --net-conf '$ROOT/net-conf.json' --node-file '$ROOT/nodes.toml'" \
        >"$SCRATCH/doctor.json" || CODE=$?
    measured_at_most "TUN: hundredths of a second" "$AT_MOST" $(($(clock) - BEGAN))
    equal "TUN: findings, exit code" "agent-not-running $1 1" "$(codes) $CODE"
    evidence "$2"
    status node1
    equal "TUN: exit code of status" 3 "$STATUS_CODE"
    begins
    only_stopped "no more $1"
}

tun_denied() {
    without_tun tun-missing "the kernel has the driver" 'mount -t tmpfs none /dev/net'
    without_tun tun-denied "nodev" 'mount -t tmpfs -o nodev none /dev/net && mknod -m 0666 /dev/net/tun c 10 200'
}

# A report of the node has all of it, and none of the secrets.
report() {
    local file=$SCRATCH/report.tar.gz bytes
    mkdir -p "$ROOT/etc/tartan"
    printf 'etcd-username = "root"\netcd-password = "%s"\n' "$SECRET" >"$ROOT/etc/tartan/tartan.toml"
    printf '# token: %s\n' "$SECRET" >>"$ROOT/nodes.toml"
    printf 'https://root:%s@192.0.2.9 Bearer %s said %s\n' "$SECRET" "$SECRET" "$SECRET" >>"$ROOT/log"
    printf -- '-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----\n' "$SECRET" >"$ROOT/var/lib/tartan/key.pem"
    # No node has it: what is dropped while the report is made is in it.
    start_in pod1 ping -q -c 200 -i 0.05 10.244.254.9
    tartan node1 report -w "$file" "${FLAGS[@]}" >/dev/null || fail "tartan report ended with code $?"
    stop "$PID"
    rm "$ROOT/etc/tartan/tartan.toml" "$ROOT/var/lib/tartan/key.pem"
    mkdir "$SCRATCH/report"
    tar -xzf "$file" -C "$SCRATCH/report" --strip-components 1
    for part in CONTENTS doctor.json answers/status.json configuration/nodes.toml kernel/rules kernel/links log/service \
        counters/snmp settings/ipv4.ip_forward service/words; do
        [ -s "$SCRATCH/report/$part" ] || fail "the report has no $part: $(cat "$SCRATCH/report/CONTENTS")"
    done
    grep -q '"verdict":"NoRoute"' "$SCRATCH/report/answers/drops-now" || fail "no drop of the time of the report: $(head -c 600 "$SCRATCH/report/answers/drops-now")"
    equal "secrets in the report" 0 "$(grep -ra "$SECRET" "$SCRATCH/report" | wc -l)"
    grep -q redacted "$SCRATCH/report/log/service" || fail "the log is not that of the service"
    bytes=$(stat -c %s "$file")
    at_most "bytes of the report" 4000000 "$bytes"
    equal "mode of the report" 600 "$(stat -c %a "$file")"
}

say "what doctor finds: $INSIDE $BACKEND"
BACKEND_NODES=2
if [ "$BACKEND" = vxlan ]; then
    BACKEND_NODES=3
    lab_up --nodes 3 --backend vxlan --inside "$INSIDE" --outside "$INSIDE" --peer kernel-vxlan
else
    lab_up --nodes 2 --backend udp --inside "$INSIDE" --outside "$INSIDE"
fi
healthy "a healthy node"
fix_leaves_alone "the agent runs" 0
duplicate_subnet
stale_mac
changed_address
flannel_device
flannel_rules
strict_filter
bridge_without_netfilter
bridge_elsewhere
wrong_checksums
clock_set_back
narrow_underlay
port_taken_beside
forwarding_off_beside
forward_drop_beside
healthy "the node after all faults"
other_nodes
report
law_one node1
lab stop node1
stopped
port_taken
two_daemons
forwarding_off
forward_drop
foreign_stays
tun_denied
# Takes flannel's place from here on.
mkdir -p "$ROOT/etc/tartan"
echo 'replace-flannel = true' >"$ROOT/etc/tartan/tartan.toml"
lab start node1
healthy "the node with its agent again"
two_daemons_beside
