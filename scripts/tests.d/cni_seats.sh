#!/usr/bin/env bash
# A thousand connections to the agent's socket that say nothing delay neither an ADD nor a `tartan status`: the plugin's
# calls have a socket and seats of their own, and who says nothing loses its seat to who comes next. A plugin that knows
# only the one socket is served too, in the running service and in the one after it.
#
# alone: it measures how long an ADD takes
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

IDLE=1000
TURNS=5
SOCKETS=$LAB_STATE/node1/run/tartan

# Connects to a socket as often as that and says nothing; connects again what is closed, and says when all were connected.
idle() {
    start_in node1 python3 -c '
import resource, selectors, socket, sys
path, count = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (count + 100, count + 100))
poll = selectors.DefaultSelector()
def connect():
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(20)
    try:
        one.connect(path)
    except OSError:
        return one.close()
    poll.register(one, selectors.EVENT_READ)
connected = 0
for _ in range(count):
    connect()
print("connected", flush=True)
while True:
    for key, _ in poll.select():
        poll.unregister(key.fileobj)
        key.fileobj.close()
        connect()
' "$1" "$IDLE" >"$SCRATCH/idle"
    until_true 30 "$IDLE idle connections" grep -q connected "$SCRATCH/idle" || true
}

# Milliseconds that the slowest of some ADDs takes; the pods are taken away again.
slowest_add() {
    local turn began took slowest=0
    for ((turn = 0; turn < TURNS; turn++)); do
        make_namespace "s$turn"
        began=$(date +%s%N)
        plugin ADD "s$turn" >/dev/null || return 1
        took=$((($(date +%s%N) - began) / 1000000))
        [ "$took" -le "$slowest" ] || slowest=$took
        plugin DEL "s$turn" || return 1
        ip netns delete "$PREFIX-s$turn"
    done
    echo "$slowest"
}

plugin() {
    jq -nc --arg root "$LAB_STATE/node1" '{cniVersion: "1.1.0", name: "pods", type: "tartan-cni", root: $root}' |
        in_ns node1 env CNI_COMMAND="$1" CNI_CONTAINERID="$2" CNI_IFNAME=eth0 CNI_NETNS="/run/netns/$PREFIX-$2" \
            CNI_PATH=/usr/lib/cni tartan-cni
}

# The socket as an old plugin asks it, which knows no other.
ask_by_old_path() {
    in_ns node1 python3 -c '
import json, socket, sys
one = socket.socket(socket.AF_UNIX)
one.settimeout(5)
one.connect(sys.argv[1])
one.sendall(b"{\"call\":\"ready\"}\n")
sys.exit("ok" not in json.loads(one.makefile().readline()))
' "$SOCKETS/tartan.sock"
}

answered() {
    tartan node1 status
}

lab_up --nodes 1 --pods 0
ALONE=$(slowest_add) || die "an ADD or a DEL fails"
say "the slowest of $TURNS ADDs with no other caller: $ALONE ms"
# Twice what it takes alone, and what a busy machine makes of it.
MOST=$((2 * ALONE + 500))
idle "$SOCKETS/tartan.sock"
TOOK=$(slowest_add) || die "an ADD or a DEL fails beside $IDLE idle connections"
measured_at_most "the slowest ADD beside $IDLE idle connections, ms" "$MOST" "$TOOK"
for ((TURN = 0; TURN < 3; TURN++)); do
    BEGAN=$(date +%s%N)
    tartan node1 status >/dev/null || fail "no status beside $IDLE idle connections"
    measured_at_most "a status beside them, ms" 4000 $((($(date +%s%N) - BEGAN) / 1000000))
done
ask_by_old_path || fail "the old path does not answer beside $IDLE idle connections"
kill -KILL "$(agent_json node1 status | jq .service_pid)"
until_true 10 "the next service answers beside them" answered || true
TOOK=$(slowest_add) || die "an ADD or a DEL of the next service fails"
measured_at_most "the slowest ADD of the next service, ms" "$MOST" "$TOOK"
stop "$PID" KILL
ask_by_old_path || fail "the old path does not answer"
# What another process removes is there again, and a plugin that finds it missing uses the other.
rm "$SOCKETS/cni.sock"
plugin STATUS none || fail "without its own socket the plugin gets no answer"
until_true 3 "the plugin's socket is there again" test -S "$SOCKETS/cni.sock" || true
law_one node1
