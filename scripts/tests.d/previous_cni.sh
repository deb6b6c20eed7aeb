#!/usr/bin/env bash
# What another CNI left on a node is shown, and removed where it is told to, beside a running Tartan: each thing that this
# kernel can make, as that CNI makes it. What is not that CNI's stays, what Tartan uses stays, and a CNI whose daemon runs is
# refused. The machine's network is afterwards as it was before; pings between pods pass all the time.
#
#   pod1 ── node1: keeper, service, leftovers of a CNI ══ underlay ══ node2 ── pod2
# case: flannel
# full: calico
# full: cilium
# full: weave
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

CNI=$1
ROOT=$LAB_STATE/node1
PINGS=400

# is_program PROCESS NAME: it is that program, and not bash any more, which is to become it.
is_program() {
    [ "$(cat "/proc/$1/comm")" = "$2" ]
}

node() {
    in_ns node1 "$@"
}

# Links by name and kind, addresses, routes, rules, the packet filter of both kinds, sets, and files that are not the agent's.
census() {
    ip -n "$PREFIX-node1" -d -j link show | jq -r '.[] | "link \(.ifname) \(.linkinfo.info_kind // "")"' | sort
    ip -n "$PREFIX-node1" -j address show | jq -r '.[] | .ifname as $i | .addr_info[] | select(.scope == "global") | "address \($i) \(.local)"' | sort
    ip -n "$PREFIX-node1" -4 route show table all | sort
    ip -n "$PREFIX-node1" -4 rule show
    ip -n "$PREFIX-node1" -6 rule show
    # Elements of Tartan's own sets come and go with packets.
    node nft --terse list ruleset 2>/dev/null | sed -E 's/packets [0-9]+ bytes [0-9]+//'
    node iptables-legacy-save 2>/dev/null | grep -v '^#' | sed -E 's/\[[0-9]+:[0-9]+\]//'
    if has_sets; then node python3 "$TOOLS/sets.py" list; fi
    # Directories that others share are not the CNI's.
    (cd "$ROOT" && find etc run/flannel var/lib -type f -not -path '*tartan*' | sort)
}

has_sets() {
    node python3 "$TOOLS/sets.py" list >/dev/null 2>&1
}

# file PATH...: below the agent's root.
file() {
    local path
    for path; do
        mkdir -p "$ROOT/$(dirname "$path")"
        echo "of $CNI" >"$ROOT/$path"
    done
}

# pod_end NAME: a veth whose other end is in a namespace of its own, as a pod's.
pod_end() {
    [ -e "/run/netns/$PREFIX-old" ] || make_namespace old
    ip -n "$PREFIX-node1" link add "$1" type veth peer name eth0 netns "$PREFIX-old"
    ip -n "$PREFIX-node1" link set "$1" up
}

# chains COMMAND TABLE HOOK COMMENT CHAIN...: chains, the first of which a rule of the hook leads to.
chains() {
    local command=$1 table=$2 hook=$3 comment=$4 chain
    shift 4
    for chain; do node "$command" -t "$table" -N "$chain"; done
    node "$command" -t "$table" -A "$1" -s 10.9.0.0/16 -m comment --comment "$comment" -j RETURN
    node "$command" -t "$table" -I "$hook" -m comment --comment "$comment" -j "$1"
    if [ $# -gt 1 ]; then node "$command" -t "$table" -A "$1" -j "$2"; fi
}

sets() {
    local name
    if ! has_sets; then
        say "this kernel has no sets of addresses"
        return 0
    fi
    for name; do node python3 "$TOOLS/sets.py" create "$name"; done
}

leave_flannel() {
    # Not flannel.1: a VXLAN device of the port would be in Tartan's way.
    ip -n "$PREFIX-node1" link add flannel.77 type vxlan id 77 dev eth0 dstport 18472 nolearning
    ip -n "$PREFIX-node1" address add 10.77.1.0/32 dev flannel.77
    ip -n "$PREFIX-node1" link set flannel.77 up
    ip -n "$PREFIX-node1" route add 10.77.2.0/24 via 10.77.2.0 dev flannel.77 onlink
    ip -n "$PREFIX-node1" link add flannel-v6.77 type vxlan id 77 dev eth0 dstport 18473 nolearning
    ip -n "$PREFIX-node1" link add cni0 type bridge
    ip -n "$PREFIX-node1" route add 10.244.9.0/24 via 192.0.2.2 dev eth0
    chains iptables-nft nat POSTROUTING "flanneld masq" FLANNEL-POSTRTG
    chains iptables-nft filter FORWARD "flanneld forward" FLANNEL-FWD
    chains iptables-legacy nat POSTROUTING "flanneld masq" FLANNEL-POSTRTG
    node nft add table ip flannel-ipv4
    node nft add chain ip flannel-ipv4 postrtg '{ type nat hook postrouting priority srcnat; }'
    file etc/cni/net.d/10-flannel.conflist var/lib/cni/flannel/0123 var/lib/cni/networks/cbr0/10.77.1.2
}

leave_calico() {
    pod_end cali0123456789a
    ip -n "$PREFIX-node1" route add 10.77.1.5/32 dev cali0123456789a scope link
    ip -n "$PREFIX-node1" link add vxlan.calico type vxlan id 4096 dev eth0 dstport 14789 nolearning
    ip -n "$PREFIX-node1" route add blackhole 10.77.1.0/26 proto 80
    ip -n "$PREFIX-node1" route add blackhole 10.77.2.0/26 proto 12
    ip -n "$PREFIX-node1" rule add not fwmark 0x100000/0x100000 lookup 1 priority 99
    chains iptables-nft filter FORWARD "cali:wUHhoiAYhphO9Mso" cali-FORWARD cali-from-wl-dispatch
    chains iptables-nft nat POSTROUTING "cali:O3lYWMrLQYEMJtB5" cali-POSTROUTING
    node iptables-nft -A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
    chains iptables-legacy filter FORWARD "cali:wUHhoiAYhphO9Mso" cali-FORWARD cali-from-wl-dispatch
    node iptables-legacy -A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
    node nft add table ip calico
    sets cali40s:abcdefgh cali40all-ipam-pools
    file etc/cni/net.d/10-calico.conflist etc/cni/net.d/calico-kubeconfig var/lib/calico/nodename
}

leave_cilium() {
    ip -n "$PREFIX-node1" link add cilium_host type veth peer name cilium_net
    ip -n "$PREFIX-node1" link add cilium_vxlan type vxlan external dstport 18474
    pod_end lxc0123456789ab
    ip -n "$PREFIX-node1" rule add fwmark 0x200/0xf00 lookup 2004 priority 9
    ip -n "$PREFIX-node1" -6 rule add fwmark 0x200/0xf00 lookup 2004 priority 9
    ip -n "$PREFIX-node1" route add local default dev lo table 2004
    chains iptables-nft filter FORWARD "cilium-feeder: CILIUM_FORWARD" CILIUM_FORWARD OLD_CILIUM_FORWARD
    chains iptables-nft nat POSTROUTING "cilium-feeder: CILIUM_POST_nat" CILIUM_POST_nat
    sets cilium_node_set_v4
    file etc/cni/net.d/05-cilium.conflist run/cilium/state/x var/lib/cilium/bpf/x
}

leave_weave() {
    ip -n "$PREFIX-node1" link add weave type bridge
    ip -n "$PREFIX-node1" link add vethwe-bridge type veth peer name vethwe-datapath
    ip -n "$PREFIX-node1" link set vethwe-bridge master weave
    pod_end vethwepl0123456
    ip -n "$PREFIX-node1" link set vethwepl0123456 master weave
    ip -n "$PREFIX-node1" link add vxlan-6784 type vxlan id 7 dev eth0 dstport 16784
    chains iptables-nft nat POSTROUTING "weave" WEAVE
    chains iptables-nft filter FORWARD "weave" WEAVE-NPC WEAVE-NPC-DEFAULT
    for command in iptables-nft iptables-legacy; do
        node "$command" -A FORWARD -o weave -j DROP
        node "$command" -A FORWARD -i weave ! -o weave -j ACCEPT
        node "$command" -A FORWARD -o weave -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    done
    sets weaver-no-masq-local weave-0123abcd
    file etc/cni/net.d/10-weave.conflist var/lib/weave/weave-netdata.db
}

# What has a name or a kind that is nearly one of a CNI's. It is on the node all the time.
leave_others() {
    ip -n "$PREFIX-node1" link add docker0 type bridge
    ip -n "$PREFIX-node1" link add lxcbr0 type bridge
    ip -n "$PREFIX-node1" link add vxlan-1 type vxlan id 99 dev eth0 dstport 19999
    ip -n "$PREFIX-node1" link add calico0 type veth peer name veth0a1b2c3
    ip -n "$PREFIX-node1" route add 10.88.0.0/16 via 192.0.2.2 dev eth0
    ip -n "$PREFIX-node1" route add 10.89.0.0/16 via 192.0.2.2 dev eth0 proto 12
    ip -n "$PREFIX-node1" rule add fwmark 0x4000/0x4000 lookup 7 priority 98
    for command in iptables-nft iptables-legacy; do
        chains "$command" nat POSTROUTING "kubernetes service portals" KUBE-SERVICES
        chains "$command" filter FORWARD "a rule that names FLANNEL-FWD, cali: and WEAVE" MINE-FORWARD
        node "$command" -A FORWARD -o weave2 -j ACCEPT
        # The operator's own, for Weave's bridge.
        node "$command" -A FORWARD -s 198.51.100.0/24 -o weave -j DROP
        node "$command" -A INPUT -i weave -j ACCEPT
    done
    node nft add table ip mine
    sets mine-weave
    file etc/cni/net.d/87-podman.conflist var/lib/cni/networks/podman/10.88.0.2 var/lib/other/file
}

# cleanup [OPTION...]: its exit code is in $CODE, what it prints in the scratch directory.
cleanup() {
    CODE=0
    tartan node1 cleanup --previous "$CNI" "$@" >"$SCRATCH/said" 2>&1 || CODE=$?
}

rows() {
    jq -r "[.leftovers[] | select($1)] | length" "$SCRATCH/said"
}

case $CNI in
flannel) DAEMON=flanneld ;;
calico) DAEMON=calico-node ;;
cilium) DAEMON=cilium-agent ;;
weave) DAEMON=weaver ;;
*) die "flannel, calico, cilium or weave?" ;;
esac

say "what $CNI left"
lab_up --nodes 2
leave_others
BEFORE=$(census)
cleanup
grep -q 'nothing of .* is left' "$SCRATCH/said" || {
    # The agent's own subnet.env is there, and kept.
    [ "$CNI" = flannel ] || fail "something is found before: $(cat "$SCRATCH/said")"
}
equal "exit code where nothing is left" 0 "$CODE"
start_in pod1 python3 "$TOOLS/pings.py" "$(address_of pod2)" "$PINGS" 0.02 3 >"$SCRATCH/answers"
PINGER=$PID
"leave_$CNI"
LEFT=$(census)

cleanup -o json
equal "exit code where something is left" 1 "$CODE"
say "found: $(jq -c '[.leftovers[] | "\(.what) \(.place)"]' "$SCRATCH/said")"
equal "rows without a reason, a place or an effect" 0 "$(rows '.why == "" or .place == "" or .effect == ""')"
equal "what could not be read" '[]' "$(jq -c .unread "$SCRATCH/said")"
cleanup
grep -q 'nothing was removed: --remove does that' "$SCRATCH/said" || fail "it does not say what removes: $(cat "$SCRATCH/said")"
same "the node after it was shown" "$LEFT" "$(census)"

say "a daemon that runs is named, and nothing is removed"
cp "$(command -v sleep)" "$SCRATCH/$DAEMON"
start_in node1 "$SCRATCH/$DAEMON" 60
until_true 5 "$DAEMON runs" is_program "$PID" "$DAEMON"
cleanup --remove
equal "exit code beside $DAEMON" 1 "$CODE"
grep -q "nothing was removed: .* process $PID (.*$DAEMON" "$SCRATCH/said" || fail "it does not name the daemon: $(cat "$SCRATCH/said")"
same "the node beside $DAEMON" "$LEFT" "$(census)"
stop "$PID"

if [ "$CNI" = flannel ]; then
    say "what flannel's plugin needs beside Tartan is kept, until Tartan's own is installed"
    cleanup -o json
    equal "files that are kept" 4 "$(rows '.outcome == "kept" and (.what == "cni-configuration" or .what == "directory")')"
    # As where flanneld wrote the file, and Tartan found it right: there is no note of it.
    mv "$ROOT/var/lib/tartan/subnet-env.json" "$SCRATCH/note"
    cleanup -o json
    equal "files that are kept without a note" 4 "$(rows '.outcome == "kept" and (.what == "cni-configuration" or .what == "directory")')"
    mv "$SCRATCH/note" "$ROOT/var/lib/tartan/subnet-env.json"
    say "k3s has flannel inside"
    cp "$(command -v sleep)" "$SCRATCH/k3s-server"
    start_in node1 "$SCRATCH/k3s-server" 60
    until_true 5 "k3s-server runs" is_program "$PID" k3s-server
    cleanup --remove
    equal "exit code beside k3s" 1 "$CODE"
    same "the node beside k3s" "$LEFT" "$(census)"
    stop "$PID"
    # It warns of flannel's configuration, which sorts before its own.
    tartan node1 cni install >"$SCRATCH/installed" 2>&1 || say "tartan cni install: $(tail -n 1 "$SCRATCH/installed")"
fi

say "removed"
cleanup --remove -o json
equal "exit code" 0 "$CODE"
equal "what failed" '[]' "$(jq -c '[.leftovers[] | select(.outcome == "failed")]' "$SCRATCH/said")"
[ "$(rows '.outcome == "removed"')" -ge 8 ] || fail "little was removed: $(jq -c . "$SCRATCH/said")"
case $CNI in
flannel) equal "what is kept" 1 "$(rows '.outcome == "kept" and (.place | endswith("run/flannel"))')" ;;
*) equal "what is kept" 0 "$(rows '.outcome == "kept"')" ;;
esac
same "the node, before $CNI and after it was removed" "$BEFORE" "$(census)"
cleanup --remove
equal "exit code of a second removal" 0 "$CODE"
if [ "$CNI" = calico ]; then
    say "what is mounted below a directory of $CNI's stays"
    file var/lib/calico/nodename
    mkdir -p "$SCRATCH/data" "$ROOT/var/lib/calico/data"
    echo "of the operator" >"$SCRATCH/data/file"
    mount --bind "$SCRATCH/data" "$ROOT/var/lib/calico/data"
    cleanup --remove
    umount "$ROOT/var/lib/calico/data"
    equal "exit code beside a mount" 1 "$CODE"
    grep -q 'FAILED: .*/var/lib/calico/data is a mount point' "$SCRATCH/said" || fail "it does not name the mount: $(cat "$SCRATCH/said")"
    equal "the operator's file" "of the operator" "$(cat "$SCRATCH/data/file")"
    cleanup --remove
    equal "exit code without the mount" 0 "$CODE"
fi
wait "$PINGER" || true
equal "pings from pod1 to pod2 meanwhile" "$PINGS received" "$(cat "$SCRATCH/answers")"
law_one node1
