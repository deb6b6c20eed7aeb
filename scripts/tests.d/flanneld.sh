#!/usr/bin/env bash
# The program under the name flanneld, with flannel's flags and variables, where `tartan run` was: the same nodes, lease and
# pods, the files and probes of flannel, its exit codes. One node is flanneld, the other `tartan run`.
#
#   pod1 ── node1 (flanneld) ══ underlay ══ node2 (tartan run) ── pod2
#                                  ╚═══════ registry
#
# flanneld.sh REGISTRY, one of
#   etcd         as it comes
#   secure       etcd with TLS, certificates of clients, and as a user with a password
#   kubernetes   the API, with the name of the node in NODE_NAME
# full: etcd
# case: secure
# full: kubernetes
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"

REGISTRY=$1
PORT=8081
PASSWORD=
ROOT=$LAB_STATE/node1
LINK=$SCRATCH/flanneld

# flanneld VARIABLE=VALUE... -- FLAG...: starts it on node1, in the place of its agent; its process id is in $PID.
flanneld() {
    local variables=()
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    env -i PATH="$PATH" TARTAN_ROOT="$ROOT" NODE_NAME=node1 "${variables[@]}" \
        setsid ip netns exec "$PREFIX-node1" "$LINK" "$@" </dev/null >>"$ROOT/log" 2>&1 &
    PID=$!
    STARTED+=("$PID")
    echo "$PID" >"$ROOT/pid"
}

# probe PATH: the code, and what is answered.
probe() {
    in_ns node1 curl -s -m 5 -w '\n%{http_code}\n' "http://192.0.2.1:$PORT$1" | tac
}

code_of() {
    probe "$1" | head -1
}

# says PATH TEXT: whether the answer has the text.
says() {
    [[ $(probe "$1") == *"$2"* ]]
}

is_ready() {
    [ "$(code_of /readyz)" = 200 ]
}

answers() {
    [ "$(code_of /healthz)" = 200 ]
}

# has_problem CODE: node1 says so.
has_problem() {
    agent_json node1 status | jq -e --arg code "$1" '.problems | any(.code == $code)'
}

has_no_problem() {
    ! has_problem "$1"
}

ended_with() {
    local code=0
    wait "$PID" || code=$?
    equal "the exit code $1" "$2" "$code"
}

case $REGISTRY in
secure) lab_up --nodes 2 --registry etcd --secure ;;
*) lab_up --nodes 2 --registry "$REGISTRY" ;;
esac
ln -s "$(readlink -f "${LAB_BIN:-$SCRIPTS/../target/fast}")/tartan" "$LINK"
SUBNET=$(agent_json node1 status | jq -r '.subnets[0]')
FLAGS=(-iface=eth0 -healthz-port "$PORT" -v=4)
VARIABLES=()
case $REGISTRY in
etcd)
    # The flag counts, and the variable is not looked at.
    VARIABLES+=(FLANNELD_ETCD_ENDPOINTS=192.0.2.252:2379 FLANNELD_HEALTHZ_PORT=1)
    ;;
secure)
    TLS=$LAB_STATE/registry/tls
    PASSWORD=$(sed -n 's/^ETCD_PASSWORD=//p' "$SCRIPTS/lab.d/etcd.sh")
    FLAGS+=(--etcd-cafile="$TLS/ca.pem" --etcd-certfile "$TLS/client.pem" --etcd-keyfile "$TLS/client.key" --etcd-username tartan)
    FLAGS+=(--etcd-endpoints=https://192.0.2.252:2379)
    VARIABLES+=("FLANNELD_ETCD_PASSWORD=$PASSWORD")
    ;;
kubernetes)
    FLAGS+=(--kube-subnet-mgr --net-config-path "$ROOT/net-conf.json")
    VARIABLES+=(FLANNELD_KUBECONFIG_FILE="$LAB_STATE/registry/kubeconfig")
    ;;
esac

say "in the place of tartan run, with its lease"
lab stop node1
rm -rf "$ROOT/run/flannel" "$ROOT/var/lib/tartan"
# What systemd gives a unit of Type=notify.
python3 - "$SCRATCH/notify" >"$SCRATCH/notified" <<'PYTHON' &
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(60)
# What it says of its state comes before.
while (said := s.recv(256).decode()) != "READY=1":
    pass
print(said)
PYTHON
NOTIFIED=$!
STARTED+=("$NOTIFIED")
until_true 5 "the socket of systemd is there" test -S "$SCRATCH/notify"
lab registry stop
flanneld "${VARIABLES[@]}" NOTIFY_SOCKET="$SCRATCH/notify" -- "${FLAGS[@]}"
KEEPER=$PID
until_true 10 "/healthz answers without the registry" answers
equal "/readyz without the registry" 503 "$(code_of /readyz)"
says /readyz 'flanneld is not ready yet' || fail "/readyz says: $(probe /readyz)"
until_true 10 "/readyz says what is waited for" says /readyz "it waits for the registry"
[ ! -s "$SCRATCH/notified" ] || fail "systemd was told too soon"
lab registry start
until_true 10 "/readyz once the registry is there" is_ready
equal "/readyz" "200 flanneld is ready" "$(probe /readyz | tr '\n' ' ' | sed 's/ $//')"
equal "/healthz" "200 flanneld is running" "$(probe /healthz | tr '\n' ' ' | sed 's/ $//')"
equal "another path" 404 "$(code_of /metrics)"
wait "$NOTIFIED" || true
equal "systemd is told" READY=1 "$(cat "$SCRATCH/notified")"
equal "the subnet" "$SUBNET" "$(agent_json node1 status | jq -r '.subnets[0]')"
equal "the device" flannel.1 "$(agent_json node1 status | jq -r .device)"
equal "subnet.env" "FLANNEL_NETWORK=10.244.0.0/16 FLANNEL_SUBNET=10.244.1.1/24 FLANNEL_MTU=1450 FLANNEL_IPMASQ=false" \
    "$(tr '\n' ' ' <"$ROOT/run/flannel/subnet.env" | sed 's/ $//')"
in_ns pod1 ping -q -c 3 -i 0.2 "$(address_of pod2)" >/dev/null || fail "pod1 does not reach pod2"
in_ns pod2 ping -q -c 3 -i 0.2 "$(address_of pod1)" >/dev/null || fail "pod2 does not reach pod1"

say "the service is started anew with the same words"
KILLED=$(service_pid node1)
[[ $(tr '\0' ' ' <"/proc/$KILLED/cmdline") == *--as-flanneld* ]] || fail "the service's command line"
if [ -n "$PASSWORD" ]; then
    for process in "$PID" "$KILLED"; do
        [[ $(tr '\0' ' ' <"/proc/$process/cmdline") != *"$PASSWORD"* ]] || fail "the password is on a command line"
    done
fi
kill -KILL "$KILLED"
another_serves() { [ "$(service_pid node1)" != "$KILLED" ]; }
until_true 10 "another service answers" another_serves
until_true 10 "/readyz after a crash" is_ready
in_ns pod1 ping -q -c 3 -i 0.2 "$(address_of pod2)" >/dev/null || fail "pod1 does not reach pod2 after a crash"

say "a rule that cuts pods off"
# A table that belongs to a process takes no accept rules of others.
mkfifo "$SCRATCH/nft"
exec 9<>"$SCRATCH/nft"
# shellcheck disable=SC2016
start_in node1 sh -c 'exec nft -i <"$1" >/dev/null' sh "$SCRATCH/nft"
RULES=$PID
cat >&9 <<'NFT'
add table ip owned { flags owner; }
add chain ip owned forward { type filter hook forward priority 0; policy drop; }
NFT
until_true 15 "/readyz names it" says /readyz 'ip owned' || say "it says: $(probe /readyz)"
equal "/readyz" 503 "$(code_of /readyz)"
equal "/healthz meanwhile" 200 "$(code_of /healthz)"
stop "$RULES"
exec 9>&-
until_true 15 "/readyz once it is gone" is_ready

say "SIGTERM"
PID=$KEEPER
kill -TERM "$PID"
ended_with "after SIGTERM" 0

say "a port that is taken ends nothing"
start_in node1 python3 -m http.server --bind 0.0.0.0 "$PORT" >/dev/null 2>&1
HOLDER=$PID
until_true 5 "the port is taken" in_ns node1 curl -s -m 1 "http://192.0.2.1:$PORT/"
flanneld "${VARIABLES[@]}" -- "${FLAGS[@]}" -ip-masq=true
until_true 10 "node1 says that the port is taken" has_problem health-port
agent_json node1 status | jq -e --arg holder "process $HOLDER (python3" '.problems[] | select(.code == "health-port") | .sentence | contains($holder)' >/dev/null ||
    fail "the holder is not named: $(agent_json node1 status | jq -c .problems)"
grep -qx FLANNEL_IPMASQ=true "$ROOT/run/flannel/subnet.env" || fail "-ip-masq is not in subnet.env"
stop "$HOLDER"
until_true 10 "/readyz once the port is free" is_ready
until_true 5 "the problem is solved" has_no_problem health-port
law_one node1

say "what cannot be used"
kill -TERM "$PID"
ended_with "after SIGTERM" 0
flanneld -- -subnet-lease-renew-margin=0
ended_with "with a bad margin" 1
flanneld -- -no-such-flag
ended_with "with an unknown flag" 2
# The lab's own agent again, for the census at its end.
lab start node1
