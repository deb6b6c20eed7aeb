#!/usr/bin/env bash
# `tartan doctor`: each local fault by itself is found, with evidence, remedy and reference, and is gone after its end; a
# healthy node has no finding. What is wrong with another node is told by that node. First with the agent running, then with it stopped, where the host and the last good state
# are all there is. Then a report of the node: whole, bounded, and without the secrets that were planted.
#
#   pod1 ── node1, tartan ══ node2, tartan        with vxlan node3, kernel, as a stock flannel peer
#
# doctor.sh INSIDE BACKEND, as in scripts/lab up
# alone: datagrams with wrong checksums are counted within a second
# case: v4 vxlan
# case: dual vxlan
# case: dual udp
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

INSIDE=$1
BACKEND=$2
ROOT=$LAB_STATE/node1
SPACE=$PREFIX-node1
# What the agent was started with: without it a stopped node is judged by the files below etc/tartan.
FLAGS=(--node-name node1 --net-conf "$ROOT/net-conf.json" --node-file "$ROOT/nodes.toml")
SECRET=planted-hunter2-secret

node_ip() { ip -n "$SPACE" "$@"; }
sysctl_of() { in_ns node1 sysctl -q -w "$@"; }

# doctor ARG...: what it says, into $SCRATCH/doctor.json; its exit code into $CODE.
doctor() {
    CODE=0
    tartan node1 doctor -o json "$@" >"$SCRATCH/doctor.json" || CODE=$?
}

# The codes of what it found, each once; what concerns the way to peers only where that is asked for.
codes() {
    jq -r '[.checks[].findings[].code | select(startswith("peer-") | not)] | unique | join(" ")' "$SCRATCH/doctor.json"
}

finds() {
    doctor "${@:2}"
    [ "$(codes)" = "$1" ]
}

# found WHAT CODES EXIT-CODE ARG...: within seconds these are the findings, each complete.
found() {
    local what=$1 expected=$2 code=$3 incomplete
    until_true 10 "$what: $expected" finds "$expected" "${@:4}" || {
        echo "found instead: '$(codes)'" >&2
        jq -c '.checks[].findings[]' "$SCRATCH/doctor.json" >&2
        return 0
    }
    # until_true runs it in this shell: what it said last is there.
    equal "$what: exit code" "$code" "$CODE"
    incomplete=$(jq -c '.checks[].findings[] | select(([.sentence, .remedy, .severity, (.evidence[0] // ""), (.reference[0] // "")]
        | any(. == "")))' "$SCRATCH/doctor.json")
    equal "$what: incomplete findings" "" "$incomplete"
    shown_by_status "$what" "$expected"
    jq -r '.checks[].findings[] | "    \(.code): \(.evidence | join("; "))"' "$SCRATCH/doctor.json" | cut -c 1-200
}

# shown_by_status WHAT CODES: while the agent answers, `tartan status` has these too and its exit code says so, within seconds.
shown_by_status() {
    case " $2 " in *" agent-not-running "*) return 0 ;; esac
    until_true 10 "$1: status says '$2'" status_says "$2" || tartan node1 status >&2
}

status_says() {
    local code=0
    tartan node1 status -o json >"$SCRATCH/status.json" || code=$?
    [ "$(jq -r '[.problems[].code | select(startswith("peer-") | not)] | unique | join(" ")' "$SCRATCH/status.json")" = "$1" ] \
        && { [ -z "$1" ] || [ "$code" -eq 1 ]; }
}

evidence() {
    jq -e --arg words "$1" '[.checks[].findings[] | .sentence, .evidence[], .remedy] | any(contains($words))' \
        "$SCRATCH/doctor.json" >/dev/null || fail "no finding says '$1': $(jq -c '.checks[].findings[]' "$SCRATCH/doctor.json")"
}

healthy() {
    found "$1" "" 0
    equal "$1: checks" 16 "$(jq '.checks | length' "$SCRATCH/doctor.json")"
}

narrow_underlay() {
    local code=underlay-narrow mtu=590
    if [ "$BACKEND" = vxlan ]; then
        # A net-conf that names an MTU, which the underlay then falls below.
        code=underlay-below-mtu mtu=1400
        sed -i 's/"Type": "vxlan"/"Type": "vxlan", "MTU": 1500/' "$ROOT/net-conf.json"
        kill -HUP "$(cat "$ROOT/pid")"
    fi
    # Below 1280 the kernel takes IPv6 off the interface: that is another fault.
    if [ "$BACKEND" = udp ] && [ "$INSIDE" != v4 ]; then mtu=1290; fi
    node_ip link set eth0 mtu "$mtu"
    found "underlay below the configured MTU" "$code" 1
    evidence eth0
    node_ip link set eth0 mtu 1500
    if [ "$BACKEND" = vxlan ]; then
        sed -i 's/, "MTU": 1500//' "$ROOT/net-conf.json"
        kill -HUP "$(cat "$ROOT/pid")"
    fi
}

# node3_mac MAC: its device has that one, and sends. The kernel forgets the device's neighbours with its MAC.
node3_mac() {
    ip -n "$PREFIX-node3" link set flannel.1 address "$1"
    ip -n "$PREFIX-node3" neighbour replace 10.244.1.0 lladdr "$(vtep_mac_of node1 4)" dev flannel.1 nud permanent
    in_ns pod3 ping -4 -q -c 3 -i 0.1 -W 1 "$(address_of pod1 4)" >/dev/null || true
}

stale_mac() {
    [ "$BACKEND" = vxlan ] || return 0
    node3_mac 0a:5e:00:00:00:77
    found "stale MAC" vtep-mac-changed 1
    evidence 0a:5e:00:00:00:77
    node3_mac "$(vtep_mac_of node3 4)"
}

duplicate_subnet() {
    cp "$ROOT/nodes.toml" "$SCRATCH/nodes.toml"
    sed 's/10\.244\.2\.0/10.244.1.0/' "$SCRATCH/nodes.toml" | cat >"$ROOT/nodes.toml"
    found "duplicate subnet" leases-refused 1
    evidence 10.244.1.0/24
    cat "$SCRATCH/nodes.toml" >"$ROOT/nodes.toml"
}

changed_address() {
    # As a /32 it does not go with the other.
    node_ip address add 192.0.2.77/32 dev eth0
    node_ip address del 192.0.2.1/24 dev eth0
    found "changed node address" underlay-interface-missing 1
    evidence 192.0.2.77
    node_ip address add 192.0.2.1/24 dev eth0
    node_ip address del 192.0.2.77/32 dev eth0
}

flannel_device() {
    node_ip link add flannel.1 type vxlan id 77 dev eth0 dstport 8479
    node_ip address add 10.244.1.0/32 dev flannel.1
    found "flannel.1 left over" flannel-left-over 1
    evidence flannel.1
    node_ip link delete flannel.1
}

flannel_rules() {
    in_ns node1 iptables-nft -w -t nat -N FLANNEL-POSTRTG
    in_ns node1 iptables-nft -w -t nat -A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
    found "FLANNEL-POSTRTG left" flannel-rules-left 1
    evidence "ip nat FLANNEL-POSTRTG"
    in_ns node1 nft delete table ip nat
}

strict_filter() {
    node_ip link add detour type bridge
    node_ip link set detour up
    node_ip route add 192.0.2.2/32 dev detour
    sysctl_of net.ipv4.conf.eth0.rp_filter=1
    found "strict reverse-path filter" reverse-path-filter 1
    evidence "192.0.2.2 by detour"
    sysctl_of net.ipv4.conf.eth0.rp_filter=0
    node_ip link delete detour
}

bridge_without_netfilter() {
    node_ip link add cni0 type bridge
    node_ip address add 10.244.1.1/24 dev cni0
    node_ip link set cni0 up
    in_ns node1 nft add table ip kube-proxy
    sysctl_of net.bridge.bridge-nf-call-iptables=0
    found "br_netfilter off" "bridge-netfilter-off mixed-pods" 1
    evidence "net.bridge.bridge-nf-call-iptables = 0"
    sysctl_of net.bridge.bridge-nf-call-iptables=1
    in_ns node1 nft delete table ip kube-proxy
    node_ip link delete cni0
}

bridge_elsewhere() {
    node_ip link add cni0 type bridge
    node_ip address add 10.244.9.1/24 dev cni0
    found "cni0 has another address" bridge-other-subnet 1
    evidence 10.244.9.1/24
    node_ip link delete cni0
}

# Datagrams to node1's port, 100 a second, whose checksum is wrong, as an interface with a broken offload sends them.
wrong_checksums() {
    start_in mallory python3 -c '
import socket, struct, time
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
datagram = struct.pack("!HHHH", 1234, 8472, 16, 0xdead) + b"\0" * 8
for _ in range(1200):
    raw.sendto(datagram, ("192.0.2.1", 0))
    time.sleep(0.01)
'
    found "broken checksum offload" checksum-errors 1
    stop "$PID" KILL
}

clock_set_back() {
    touch -d '+1 hour' "$ROOT/var/lib/tartan/last-good.json"
    found "clock set back" clock-set-back 1
    evidence "in the future"
    touch "$ROOT/var/lib/tartan/last-good.json"
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

# With the agent stopped: only that, and nothing else is wrong.
stopped() {
    found "stopped agent" agent-not-running 3 "${FLAGS[@]}" --all
    jq -e '.others_not_asked | contains("only a running agent")' "$SCRATCH/doctor.json" >/dev/null || fail "a stopped agent asks others"
    # By the last good state alone.
    found "stopped agent, without flags" "agent-not-running net-conf-refused" 1 --node-name node1 --node-file "$ROOT/nodes.toml"
}

port_taken() {
    start_in node1 python3 -c '
import socket, time
taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind(("192.0.2.1", 8472))
time.sleep(60)
'
    found "port 8472 taken" "agent-not-running underlay-port-taken" 1 "${FLAGS[@]}"
    evidence python3
    stop "$PID" KILL
}

two_daemons() {
    cp "$(command -v sleep)" "$SCRATCH/flanneld"
    start_in node1 "$SCRATCH/flanneld" 60
    found "two daemons" "agent-not-running flanneld-running" 1 "${FLAGS[@]}" --replace-flannel
    evidence flanneld
    stop "$PID" KILL
}

forwarding_off() {
    sysctl_of net.ipv4.ip_forward=0
    in_ns node1 nft -f - <<'NFT'
table inet strict {
    chain forward { type filter hook forward priority 0; policy drop; }
}
NFT
    found "ip_forward 0, FORWARD drops" "agent-not-running firewall-cuts-pods-off forwarding-off" 1 "${FLAGS[@]}"
    evidence "policy drop of the nft chain inet strict forward"
    doctor --fix "${FLAGS[@]}"
    equal "repaired: findings" agent-not-running "$(codes)"
    equal "repaired: net.ipv4.ip_forward" 1 "$(in_ns node1 sysctl -n net.ipv4.ip_forward)"
    jq -r '.repairs[]' "$SCRATCH/doctor.json"
    equal "repaired: failures" 0 "$(jq '[.repairs[] | select(startswith("repaired: ") | not)] | length' "$SCRATCH/doctor.json")"
    in_ns node1 nft delete table inet strict
}

# without_tun CODE WORDS CMD...: a node whose /dev/net is prepared by the command in a mount namespace of its own.
without_tun() {
    local code=$1 words=$2
    in_ns node1 unshare -m bash -c "${3} && exec tartan --root '$ROOT' doctor -o json --node-name node1 --net-conf '$ROOT/net-conf.json' --node-file '$ROOT/nodes.toml'" \
        >"$SCRATCH/doctor.json" || CODE=$?
    equal "TUN: findings" "agent-not-running $code" "$(codes)"
    evidence "$words"
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
    tartan node1 report -w "$file" "${FLAGS[@]}" >/dev/null || fail "tartan report ended with code $?"
    rm "$ROOT/etc/tartan/tartan.toml" "$ROOT/var/lib/tartan/key.pem"
    mkdir "$SCRATCH/report"
    tar -xzf "$file" -C "$SCRATCH/report" --strip-components 1
    for part in CONTENTS doctor.json answers/status.json configuration/nodes.toml kernel/rules kernel/links log/service \
        counters/snmp settings/ipv4.ip_forward service/words; do
        [ -s "$SCRATCH/report/$part" ] || fail "the report has no $part: $(cat "$SCRATCH/report/CONTENTS")"
    done
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
# One after the other: that a fault is gone shows in that the next is found alone.
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
healthy "the node after all faults"
other_nodes
report
law_one node1
lab stop node1
stopped
port_taken
two_daemons
forwarding_off
tun_denied
lab start node1
healthy "the node with its agent again"
