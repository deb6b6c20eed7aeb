#!/usr/bin/env bash
# The agent of a node is stopped and started, and killed with all of its processes and started: no TCP connection ends,
# neither between pods nor one that is masqueraded to the tunnel device; the device, its addresses and routes stay, no
# process without capabilities attaches to it, and while no agent runs the kernel refuses what pods send and `tartan
# status` shows the last good state, marked as such.
# labs: lab=udp-v4|udp-dual|vxlan-over-v4
# full: run=default|full
# last: it stops and kills agents
# seconds: 900
. "$TOOLS/kill_service.sh"
. "$TOOLS/held_load.sh"

is_refused() {
    local family
    for family in "${FAMILIES[@]}"; do
        { in_ns pod2 ping -c 1 -W 1 "$(address_of pod3 "$family")" 2>&1 || true; } >"$SCRATCH/refused"
        grep -qi unreachable "$SCRATCH/refused" || return 1
    done
}

# What the node forwarded by last shows, marked so that neither a reader nor a script takes it for an answer.
last_good_is_shown() {
    local command code
    for command in status peers routes; do
        code=0
        tartan node1 "$command" -o json >"$SCRATCH/$command.json" 2>/dev/null || code=$?
        equal "exit code of $command, $1" 3 "$code"
        jq -e '.code == "no-agent" and .last_good.node == "node1" and .last_good.peer_count == 2
            and .last_good.age >= 0 and .last_good_refused == null and (has("peers") or has("routes") | not)' \
            "$SCRATCH/$command.json" >/dev/null || fail "$command, $1: $(cat "$SCRATCH/$command.json")"
    done
    equal "peers of the last good state, $1" "$PEERS" "$(jq -c '[.last_good.peers[].name]' "$SCRATCH/peers.json")"
    equal "owners of its routes, $1" "$OWNERS" "$(jq -c '[.last_good.routes[].node] | unique' "$SCRATCH/routes.json")"
}

# No agent runs.
nothing_serves() {
    local code=0 text
    # Of a stop at once from Linux 6.8 on, which settles the carrier when it is asked.
    until_true 5 "the kernel refuses what pods send, $1" is_refused || cat "$SCRATCH/refused"
    is_kept_from_users "$1"
    tartan node1 status >"$SCRATCH/status" 2>&1 || code=$?
    equal "exit code of status, $1" 3 "$code"
    for text in '^LAST GOOD STATE, .* old: ' 'as unreachable; tartan0 stays'; do
        grep -q "$text" "$SCRATCH/status" || fail "status, $1, has no '$text': $(cat "$SCRATCH/status")"
    done
    last_good_is_shown "$1"
    equal "carrier of tartan0, $1" 0 "$(in_ns node1 cat /sys/class/net/tartan0/carrier)"
}

# A process without capabilities that can open /dev/net/tun, as udev lets every user, gets no queue of the device.
is_kept_from_users() {
    equal "why a user's process does not attach to tartan0, $1" "EINVAL EPERM" "$(in_ns node1 python3 -c "$ATTACH")"
}

ATTACH='
import errno, fcntl, os, struct
queue, said = os.open("/dev/net/tun", os.O_RDWR), set()
os.setgroups([])
os.setuid(65534)
# Without packet information a TUN or a TAP; and with virtio headers and several queues.
for flags in 0x1001, 0x1002, 0x5101, 0x5102:
    try:
        fcntl.ioctl(queue, 0x400454CA, struct.pack("16sH22x", b"tartan0", flags))
        said.add("attached")
    except OSError as error:
        said.add(errno.errorcode[error.errno])
print(*sorted(said))'

is_kept_from_users "while an agent runs"
start_load
BEFORE=$(device_and_routes node1)
LOGGED=$(wc -l <"$LAB_STATE/node1/log")
PEERS=$(agent_json node1 peers | jq -c '[.peers[].name]')
OWNERS=$(agent_json node1 routes | jq -c '[.routes[].node] | unique')
for WAY in "lab stop" kill_agent; do
    $WAY node1
    nothing_serves "after $WAY"
    lab start node1
    all_go_on "after $WAY and a start"
done
load_survived
same "device, addresses and routes of node1" "$BEFORE" "$(device_and_routes node1)"
equal "times that the device was taken over" 2 \
    "$(tail -n "+$((LOGGED + 1))" "$LAB_STATE/node1/log" | grep -c 'the device that is there is taken over')"
