#!/usr/bin/env bash
# The program under the name flanneld, with flannel's flags and variables, where `tartan run` was: the same nodes, lease
# and pods, the files and probes of flannel. One node is flanneld, the other `tartan run`. With etcd by TLS no password
# is on a command line, and one that is wrong is named as such.
#
#   pod1 ── node1 (flanneld) ══ underlay ══ node2 (tartan run) ── pod2
#                                  ╚═══════ registry
#
# flanneld.sh REGISTRY, one of
#   etcd         as it comes
#   secure       etcd with TLS, certificates of clients, and as a user with a password
#   kubernetes   the API, with the name of the node in NODE_NAME
# case: secure
# full: etcd
# full: kubernetes
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/registry.sh
. "$TOOLS/registry.sh"

KIND=$1
PORT=8081
PASSWORD=$(sed -n 's/^ETCD_PASSWORD=//p' "$SCRIPTS/lab.d/etcd.sh")
ROOT=$LAB_STATE/node1
TLS=$LAB_STATE/registry/tls
LINK=$SCRATCH/flanneld
FLAGS=(-iface=eth0 -healthz-port "$PORT" -v=4)
VARIABLES=()
case $KIND in
etcd)
    # The flag counts, and the variable is not looked at.
    VARIABLES=(FLANNELD_ETCD_ENDPOINTS=192.0.2.252:2379 FLANNELD_HEALTHZ_PORT=1)
    ;;
secure)
    FLAGS+=(--etcd-cafile="$TLS/ca.pem" --etcd-certfile "$TLS/client.pem" --etcd-keyfile "$TLS/client.key"
        --etcd-username tartan --etcd-endpoints=https://192.0.2.252:2379)
    VARIABLES=("FLANNELD_ETCD_PASSWORD=$PASSWORD")
    ;;
kubernetes)
    FLAGS+=(--kube-subnet-mgr --net-config-path "$ROOT/net-conf.json")
    VARIABLES=(FLANNELD_KUBECONFIG_FILE="$LAB_STATE/registry/kubeconfig")
    ;;
esac

# flanneld VARIABLE=VALUE... -- FLAG...: starts it on node1, in the place of its agent; its process id is in $PID.
flanneld() {
    local variables=()
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    env -i PATH="$PATH" TARTAN_ROOT="$ROOT" NODE_NAME=node1 "${variables[@]}" \
        setsid ip netns exec "$PREFIX-node1" "$LINK" "${@:2}" </dev/null >>"$ROOT/log" 2>&1 &
    PID=$!
    STARTED+=("$PID")
    echo "$PID" >"$ROOT/pid"
}

# probe PATH: the code and what is answered, in a line.
probe() {
    local said
    said=$(in_ns node1 curl -s -m 5 -w '\n%{http_code}' "http://192.0.2.1:$PORT$1")
    echo "${said##*$'\n'} ${said%$'\n'*}" | paste -sd ' ' | sed 's/ *$//'
}

# answers PATH TEXT: whether the code and the answer begin with the text, or has it behind `*`.
answers() {
    # shellcheck disable=SC2053
    [[ $(probe "$1") == $2* ]]
}

pods_talk() {
    in_ns pod1 ping -q -c 3 -i 0.2 "$(address_of pod2)" >/dev/null || fail "pod1 does not reach pod2 $1"
    in_ns pod2 ping -q -c 3 -i 0.2 "$(address_of pod1)" >/dev/null || fail "pod2 does not reach pod1 $1"
}

# What systemd gives a unit of Type=notify; what it says of its state comes before.
notified() {
    python3 - "$1" <<'PYTHON'
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(60)
while (said := s.recv(256).decode()) != "READY=1":
    pass
print(said)
PYTHON
}

in_the_place_of_tartan_run() {
    local subnet notified
    subnet=$(agent_json node1 status | jq -r '.subnets[0]')
    lab stop node1
    rm -rf "$ROOT/run/flannel" "$ROOT/var/lib/tartan"
    notified "$SCRATCH/notify" >"$SCRATCH/notified" &
    notified=$!
    STARTED+=("$notified")
    until_true 5 "the socket of systemd is there" test -S "$SCRATCH/notify"
    registry stop
    flanneld "${VARIABLES[@]}" NOTIFY_SOCKET="$SCRATCH/notify" -- "${FLAGS[@]}"
    until_true 10 "/healthz answers without the registry" answers /healthz 200
    until_true 10 "/readyz says what is waited for" \
        answers /readyz "503*flanneld is not ready yet*it waits for the registry"
    [ ! -s "$SCRATCH/notified" ] || fail "systemd was told too soon"
    registry start
    until_true 10 "/readyz once the registry is there" answers /readyz "200 flanneld is ready"
    equal "/healthz" "200 flanneld is running" "$(probe /healthz)"
    answers /metrics 404 || fail "another path: $(probe /metrics)"
    wait "$notified" || true
    equal "systemd is told" READY=1 "$(cat "$SCRATCH/notified")"
    equal "the subnet and the device" "$subnet flannel.1" \
        "$(agent_json node1 status | jq -r '"\(.subnets[0]) \(.device)"')"
    equal "subnet.env" \
        "FLANNEL_NETWORK=10.244.0.0/16 FLANNEL_SUBNET=10.244.1.1/24 FLANNEL_MTU=1450 FLANNEL_IPMASQ=false" \
        "$(paste -sd ' ' "$ROOT/run/flannel/subnet.env")"
    pods_talk
    registry write 99
    until_true "$FOLLOWED_WITHIN" "node1 has what is new" knows node1 99
    registry delete 99
}

another_service() {
    [ "$(service_pid node1)" != "$1" ] && answers /readyz 200
}

# The service is started anew with the same words.
crash() {
    local killed process
    killed=$(service_pid node1)
    [[ $(tr '\0' ' ' <"/proc/$killed/cmdline") == *--as-flanneld* ]] || fail "the service's command line"
    for process in "$PID" "$killed" "$(service_pid node2)"; do
        [[ $(tr '\0' ' ' <"/proc/$process/cmdline") != *"$PASSWORD"* ]] || fail "the password is on a command line"
    done
    kill -KILL "$killed"
    until_true 10 "/readyz after a crash" another_service "$killed"
    pods_talk "after a crash"
}

is_refused() {
    grep -qi password <<<"$(problem "$1" registry-lost)"
}

another_password() {
    local node
    etcdctl user passwd tartan --interactive=false <<<another-password >/dev/null
    registry stop
    registry start
    for node in node1 node2; do
        until_true "$BACK_WITHIN" "$node says that its password is refused" is_refused $node
    done
    etcdctl user passwd tartan --interactive=false <<<"$PASSWORD" >/dev/null
    for node in node1 node2; do until_true 10 "$node is in touch again" all_well $node; done
}

# A table that belongs to a process takes no accept rules of others.
pods_are_cut_off() {
    local rules
    mkfifo "$SCRATCH/nft"
    exec 9<>"$SCRATCH/nft"
    # shellcheck disable=SC2016
    start_in node1 sh -c 'exec nft -i <"$1" >/dev/null' sh "$SCRATCH/nft"
    rules=$PID
    echo 'add table ip owned { flags owner; }' >&9
    echo 'add chain ip owned forward { type filter hook forward priority 0; policy drop; }' >&9
    until_true 15 "/readyz names it" answers /readyz "503*ip owned" || say "it says: $(probe /readyz)"
    answers /healthz 200 || fail "/healthz meanwhile: $(probe /healthz)"
    stop "$rules"
    exec 9>&-
    until_true 15 "/readyz once it is gone" answers /readyz 200
}

# It ends nothing, and its holder is named.
port_is_taken() {
    local holder
    start_in node1 python3 -m http.server --bind 0.0.0.0 "$PORT" >/dev/null 2>&1
    holder=$PID
    until_true 5 "the port is taken" is_bound node1 tcp "$PORT"
    flanneld "${VARIABLES[@]}" -- "${FLAGS[@]}" -ip-masq=true
    until_true 10 "node1 says that the port is taken" has_problem node1 health-port
    [[ $(problem node1 health-port) == *"process $holder (python3"* ]] ||
        fail "the holder is not named: $(problem node1 health-port)"
    grep -qx FLANNEL_IPMASQ=true "$ROOT/run/flannel/subnet.env" || fail "-ip-masq is not in subnet.env"
    stop "$holder"
    until_true 10 "/readyz once the port is free" answers /readyz 200
    until_true 5 "the problem is solved" all_well node1
}

ends() {
    local code=0
    kill -TERM "$1"
    wait "$1" || code=$?
    equal "the exit code after SIGTERM" 0 "$code"
}

case $KIND in
secure) lab_up --nodes 2 --registry etcd --secure ;;
*) lab_up --nodes 2 --registry "$KIND" ;;
esac
ln -s "$BIN/tartan" "$LINK"
in_the_place_of_tartan_run
crash
if [ "$KIND" = secure ]; then another_password; fi
KEEPER=$PID
pods_are_cut_off
ends "$KEEPER"
port_is_taken
law_one node1
ends "$(cat "$ROOT/pid")"
# The lab's own agent again, for the census at its end.
lab start node1
