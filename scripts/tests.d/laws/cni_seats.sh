#!/usr/bin/env bash
# A thousand connections to the agent's socket that say nothing delay neither an ADD nor `tartan status`: the plugin's
# calls have a socket and seats of their own, and a connection that says nothing loses its seat to the next. A plugin
# that knows only the one socket is served too, in the running service and in the one after it. With --full an ADD
# beside them takes at most twice the slowest without them, and 0.5 s.
# labs: inside=v4 format=udp
# last: it kills a service
# shellcheck source=scripts/tests.d/tools/law.sh
. "$(dirname "$(readlink -f "$0")")/../tools/law.sh"
# shellcheck source=scripts/tests.d/tools/cni.sh
. "$TOOLS/cni.sh"

IDLE=1000
TURNS=5
SOCKETS=$LAB_STATE/node1/run/tartan

# Connects to the agent's socket IDLE times and says nothing; connects again what is closed.
idle() {
    start_in node1 python3 -c '
import resource, selectors, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))
poll, count = selectors.DefaultSelector(), int(sys.argv[2])
while True:
    try:
        while len(poll.get_map()) < count:
            one = socket.socket(socket.AF_UNIX)
            one.connect(sys.argv[1])
            poll.register(one, selectors.EVENT_READ)
        print("connected", flush=True)
    except OSError:
        one.close()
    for key, _ in poll.select(0.1):
        poll.unregister(key.fileobj)
        key.fileobj.close()
' "$SOCKETS/tartan.sock" "$IDLE" >"$SCRATCH/idle"
    until_true 30 "$IDLE idle connections" grep -q connected "$SCRATCH/idle"
}

# Each pod is attached and detached TURNS times; the slowest ADD, in milliseconds, into SLOWEST.
adds() {
    local turn began took
    SLOWEST=0
    for ((turn = 0; turn < TURNS; turn++)); do
        began=${EPOCHREALTIME/./}
        call ADD node1 seated >/dev/null || fail "ADD $1"
        took=$(((${EPOCHREALTIME/./} - began) / 1000))
        [ "$took" -le "$SLOWEST" ] || SLOWEST=$took
        call DEL node1 seated || fail "DEL $1"
    done
    say "the slowest of $TURNS ADDs $1: $SLOWEST ms"
}

# What another process removes is there again, and a plugin that finds it missing uses the one that old plugins know.
old_path() {
    rm "$SOCKETS/cni.sock"
    call STATUS node1 none '{"cniVersion": "1.1.0"}' || fail "without its own socket the plugin gets no answer $1"
    until_true 3 "the plugin's socket is there again" test -S "$SOCKETS/cni.sock"
}

new_pods seated
undo call DEL node1 seated
adds "with no other caller"
MOST=$((2 * SLOWEST + 500))
idle
adds "beside $IDLE idle connections"
measured_at_most "the slowest of them, ms" "$MOST" "$SLOWEST"
for _ in 1 2 3; do until_true 4 "a status beside them" tartan node1 status; done
old_path "beside $IDLE idle connections"
kill -KILL "$(service_pid node1)"
until_true 10 "the next service answers beside them" tartan node1 status
adds "of the next service"
measured_at_most "the slowest of them, ms" "$MOST" "$SLOWEST"
stop "$PID" KILL
old_path "when they are gone"
