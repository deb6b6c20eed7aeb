#!/usr/bin/env bash
# The program under the name flanneld, with flannel's flags and variables, where `tartan run` was: the same nodes, lease
# and pods, the files and probes of flannel. One node is flanneld, the other `tartan run`. With etcd by TLS no password
# is on a command line, and one that is wrong is named as such. (What /readyz says while pods are cut off, and of a port
# that is taken, cargo's tests of the agent's module `health` show.)
#
#   pod1 ── node1 (flanneld) ══ underlay ══ node2 (tartan run) ── pod2
#                                  ╚═══════ registry
#
# flanneld.sh REGISTRY, one of
#   secure       etcd with TLS, certificates of clients, and as a user with a password
#   kubernetes   the API, with the name of the node in NODE_NAME
# case: secure
# full: kubernetes
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/registry.sh"

PORT=8081
# Gives a unit of Type=notify its socket; what that says of its state comes before.
MANAGER='import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(60)
while (said := s.recv(256)) != b"READY=1": pass
print(said.decode())'
PASSWORD=$(sed -n 's/^ETCD_PASSWORD=//p' "$SCRIPTS/lab.d/etcd.sh")
ROOT=$LAB_STATE/node1
TLS=$LAB_STATE/registry/tls
# shellcheck disable=SC2034 # registry.sh uses it.
TARTAN=(node1 node2)
FLAGS=(-iface=eth0 -healthz-port "$PORT" -v=4 -ip-masq=true)
case $1 in
secure)
    LAB=(--registry etcd --secure)
    FLAGS+=(--etcd-cafile="$TLS/ca.pem" --etcd-certfile "$TLS/client.pem" --etcd-keyfile "$TLS/client.key"
        --etcd-username tartan --etcd-endpoints=https://192.0.2.252:2379)
    VARIABLE=FLANNELD_ETCD_PASSWORD=$PASSWORD
    ;;
kubernetes)
    LAB=(--registry kubernetes)
    FLAGS+=(--kube-subnet-mgr --net-config-path "$ROOT/net-conf.json")
    VARIABLE=FLANNELD_KUBECONFIG_FILE=$LAB_STATE/registry/kubeconfig
    ;;
esac

# answers PATH TEXT: whether the code and the answer, in a line, begin with the text, or have it behind `*`.
answers() {
    local said
    said=$(in_ns node1 curl -s -m 5 -w '\n%{http_code}' "http://192.0.2.1:$PORT$1")
    # shellcheck disable=SC2053
    [[ "${said##*$'\n'} ${said//$'\n'/ }" == $2* ]]
}

pods_talk() {
    in_ns pod1 ping -q -c 3 -i 0.2 "$(address_of pod2)" >/dev/null || fail "pod1 does not reach pod2 $1"
    in_ns pod2 ping -q -c 3 -i 0.2 "$(address_of pod1)" >/dev/null || fail "pod2 does not reach pod1 $1"
}

in_the_place_of_tartan_run() {
    local subnet notified
    subnet=$(agent_json node1 status | jq -r '.subnets[0]')
    lab stop node1
    rm -rf "$ROOT/run/flannel" "$ROOT/var/lib/tartan"
    start_in node1 python3 -c "$MANAGER" "$SCRATCH/notify" >"$SCRATCH/notified"
    notified=$PID
    until_true 5 "the socket of systemd is there" test -S "$SCRATCH/notify"
    registry stop
    ln -s "$BIN/tartan" "$SCRATCH/flanneld"
    env -i PATH="$PATH" TARTAN_ROOT="$ROOT" NODE_NAME=node1 "$VARIABLE" NOTIFY_SOCKET="$SCRATCH/notify" \
        setsid ip netns exec "$PREFIX-node1" "$SCRATCH/flanneld" "${FLAGS[@]}" </dev/null >>"$ROOT/log" 2>&1 &
    KEEPER=$!
    STARTED+=("$KEEPER")
    echo "$KEEPER" >"$ROOT/pid"
    until_true 10 "/healthz answers without the registry" answers /healthz "200 flanneld is running"
    until_true 10 "/readyz says what is waited for" \
        answers /readyz "503*flanneld is not ready yet*it waits for the registry"
    [ ! -s "$SCRATCH/notified" ] || fail "systemd was told too soon"
    registry start
    until_true 10 "/readyz once the registry is there" answers /readyz "200 flanneld is ready"
    wait "$notified" || true
    equal "systemd is told" READY=1 "$(cat "$SCRATCH/notified")"
    equal "the subnet and the device" "$subnet flannel.1" \
        "$(agent_json node1 status | jq -r '"\(.subnets[0]) \(.device)"')"
    equal "subnet.env" \
        "FLANNEL_NETWORK=10.244.0.0/16 FLANNEL_SUBNET=10.244.1.1/24 FLANNEL_MTU=1450 FLANNEL_IPMASQ=true" \
        "$(paste -sd ' ' "$ROOT/run/flannel/subnet.env")"
    pods_talk "at first"
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
    for process in "$KEEPER" "$killed" "$(service_pid node2)"; do
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
    etcdctl user passwd tartan --interactive=false <<<another-password >/dev/null
    registry stop
    registry start
    until_true "$BACK_WITHIN" "both nodes say that their password is refused" on_all is_refused
    etcdctl user passwd tartan --interactive=false <<<"$PASSWORD" >/dev/null
    until_true 10 "both nodes are in touch again" on_all no_problem
}

lab_up --nodes 2 "${LAB[@]}"
in_the_place_of_tartan_run
crash
if [ "$1" = secure ]; then another_password; fi
law_one node1
CODE=0
kill -TERM "$KEEPER"
wait "$KEEPER" || CODE=$?
equal "the exit code after SIGTERM" 0 "$CODE"
# The lab's own agent again, for the census at its end.
lab start node1
