#!/usr/bin/env bash
# Whether a peer has the kernel path is known from its probes, whatever registry there is: programs send to it from the moment
# that it says so, and not to one that says that it has none.
#
#   pod1 ── node1, auto ══ underlay ══ node2, off, then auto, then off ── pod2
#                             ╚═══════ node3, a kernel VXLAN device ───── pod3
#
# kernel_path_peers.sh file|etcd|kubernetes
# full: etcd
# full: kubernetes
# full: file
# Peers learn it from probes.
export TARTAN_PROBE=true
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kernel_path.sh
. "$TOOLS/kernel_path.sh"

REGISTRY=$1
# Datagrams a second.
RATE=500
# Seconds: between two probes, and two ticks of control.
FOLLOWED_WITHIN=5

# sent_by_programs SECONDS: what node1's programs send to peers meanwhile.
sent_by_programs() {
    local before
    before=$(kernel_path_flow node1 outbound sent)
    sleep "$1"
    echo $(($(kernel_path_flow node1 outbound sent) - before))
}

# reasons NODE: of the peers that user space sends to.
reasons() {
    agent_json "$1" status | jq -r '[.kernel_path.user_space_peers[] | "\(.reason) \(.count)"] | join(", ")'
}

say "peers of the kernel path, by $REGISTRY"
lab_up --nodes 3 --peer kernel-vxlan --registry "$REGISTRY"
set_mode node1 auto
start_in pod2 python3 "$TOOLS/steady.py" serve "$(address_of pod2 4)" 9000 >"$SCRATCH/arrivals"
SERVER=$PID
sleep 0.5
start_in pod1 python3 "$TOOLS/steady.py" send "$(address_of pod1 4)" 9001 "$(address_of pod2 4)" 9000 "$RATE" >"$SCRATCH/sent"
SENDER=$PID

until_true "$FOLLOWED_WITHIN" "node2 says that it has none" user_space_sends node1 node2
# Connection tracking calls UDP a stream after 2 s.
sleep 4
equal "packets of node1's programs to node2, which is off" 0 "$(kernel_path_flow node1 outbound sent)"
equal "why" "its probes say that its kernel path is not in use" "$(in_user_space node1 node2)"
grep -qF "user space sends to 1 peer (its probes say that its kernel path is not in use)" <<<"$(tartan node1 status)" ||
    fail "tartan status: $(tartan node1 status | grep -i 'kernel path')"
grep -qF "its probes say that its kernel path is not in use" <<<"$(tartan node1 peers --wide | grep -wF "$(underlay_of node2 4)")" || fail "tartan peers: $(tartan node1 peers --wide)"

say "flannel's node"
in_ns pod1 ping -q -c 100 -i 0.01 "$(address_of pod3)" >"$SCRATCH/ping" || fail "ping of node3's pod"
equal "why user space sends to the kernel VXLAN device" "" "$(in_user_space node1 node3)"
[ "$(kernel_path_flow node1 outbound sent)" -ge 50 ] || fail "node1's programs sent $(kernel_path_flow node1 outbound sent) packets to the kernel VXLAN device"

say "node2 comes to have it"
set_mode node2 auto
until_true "$FOLLOWED_WITHIN" "node1's programs send to node2" programs_send node1 node2
[ "$(sent_by_programs 4)" -gt $((2 * RATE)) ] || fail "node1's programs do not carry what goes to node2"
INSTALLED=$(agent_json node1 status | jq .kernel_path.flows.installed)
[ "$INSTALLED" -ge 2 ] || fail "$INSTALLED flows are installed on node1"

say "a service of node2 that is killed and starts anew goes on saying so"
PID2=$(service_pid node2)
kill -KILL "$PID2"
for _ in $(seq 20); do
    ! user_space_sends node1 node2 || fail "node1 left node2 to user space: $(in_user_space node1 node2)"
    sleep 0.2
done
until_true 5 "a new service on node2" restarted node2 "$PID2"

say "node2 has it no more"
set_mode node2 off
until_true "$FOLLOWED_WITHIN" "node1 knows" user_space_sends node1 node2
equal "reasons on node1" "announced 1" "$(reasons node1)"
sleep 0.2
equal "packets of node1's programs in 2 s" 0 "$(sent_by_programs 2)"
stop "$SENDER"
stop "$SERVER"
read -r SENT _ ANSWERED _ <"$SCRATCH/sent"
# What is lost on the way into use and out of it is kernel_path.sh's to count.
say "$SENT datagrams, $ANSWERED answered"
for NODE in node1 node2; do KERNEL_PATH=auto law_one "$NODE"; done
