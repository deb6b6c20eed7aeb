#!/usr/bin/env bash
# podman with its CNI backend on two nodes: containers and pods of both families reach each other whole, a published
# port is Debian's `portmap` behind us, and what podman removes leaves no trace, also of what was killed before: podman,
# the keepers of a pod's containers, a container.
#
#   web1, pod1 ── node1 tartan ══ underlay ══ tartan node2 ── web2
#
# case:
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/runtimes.sh"

SHOWN='{{with .NetworkSettings}}{{.IPAddress}} {{.GlobalIPv6Address}} {{.MacAddress}}{{end}}'

# run NODE NAME OPTION...: a container that sleeps; with -d podman prints its id, and ends.
run() {
    podman "$1" run --name "$2" --cgroup-parent "/$PREFIX-runtimes" "${@:3}" --rootfs "$SCRATCH/$1/rootfs" \
        /bin/sleep 600
}

# run_pod NODE NAME OPTION...: noted as a pod.
run_pod() {
    note_pod "$2" "$1" "$(run "$@" -d)"
    equal "what podman shows of $2" "${POD_ADDRESSES[$2]} $(record_of "$2" | jq -r .mac)" \
        "$(podman "$1" inspect "$2" --format "$SHOWN")"
}

runtimes_up podman_up
for NODE in node1 node2; do cni "$NODE" install || fail "install on $NODE"; done
# A network whose plugin does not answer VERSION rightly is left out, and podman takes a bridge of its own.
equal "podman's networks" 'tartan tartan-cni' "$(podman node1 network ls --format '{{.Name}} {{.Driver}}')"
run_pod node2 web2
run_pod node1 web1 -p 8081:5003
exchange web1 web2
# A published port, from wherever it may be asked for: another node, its own, its pods, and its own pod.
for NAME in node1 node2 web1 web2; do transfer "$NAME" web1 "$(underlay_of node1 4)" 8081; done
transfer node1 web1 127.0.0.1 8081

# A pod of two containers, whose keepers are killed.
podman node1 pod create --name pod1 --network tartan --cgroup-parent "/$PREFIX-runtimes" >/dev/null
run node1 second -d --pod pod1 >/dev/null
note_pod pod1 node1 "$(podman node1 pod inspect pod1 --format '{{.InfraContainerID}}')"
for NAME in second "${POD_ID[pod1]}"; do
    in_runtime_host node1 pkill -KILL -x conmon -F "$(podman node1 inspect "$NAME" --format '{{.ConmonPidFile}}')"
done
contains "addresses in second" "${POD_ADDRESSES[pod1]%% *}/" "$(podman node1 exec second ip address)"
exchange pod1 web2

run_pod node1 web3 --ip 10.244.1.77 --mac-address 02:00:00:00:01:02
equal "those of web3" "10.244.1.77 02:00:00:00:01:02" \
    "${POD_ADDRESSES[web3]%% *} $(in_pod web3 ip -j link show eth0 | jq -r '.[0].address')"
reaches web3 "${POD_ADDRESSES[web2]##* }"

# podman is killed, and a container: conmon has it detached, without podman.
run node1 web4 &
PODMAN=$!
until_true 15 "web4 runs" podman node1 exec web4 /bin/true
note_pod web4 node1 "$(podman node1 inspect web4 --format '{{.Id}}')"
kill_inside "$PODMAN" podman
reaches web4 "${POD_ADDRESSES[web2]%% *}"
in_runtime_host node1 kill -KILL "$(podman node1 inspect web4 --format '{{.State.Pid}}')"
until_true 10 "web4 is detached" is_detached web4
podman node1 pod rm -f -t 0 pod1 >/dev/null
podman node1 rm -f -t 0 web1 web3 web4 >/dev/null
podman node2 rm -f -t 0 web2 >/dev/null
runtimes_end
