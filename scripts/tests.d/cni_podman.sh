#!/usr/bin/env bash
# podman with its CNI backend on two nodes: containers and pods of both families reach each other whole, a published
# port is Debian's `portmap` behind us, and what podman removes leaves no trace, also of what was killed before: podman,
# the keepers of a pod's containers, a container.
#
#   web1, pod1 ── node1 tartan ══ underlay ══ tartan node2 ── web2
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

ADDRESS=10.244.1.77
MAC=02:00:00:00:01:02
SHOWN='{{with .NetworkSettings}}{{.IPAddress}} {{.GlobalIPv6Address}} {{.MacAddress}}{{end}}'
RUN=(run --cgroup-parent "/$PREFIX-runtimes" --rootfs "$SCRATCH/node1/rootfs")

inspect() {
    podman node1 inspect "$1" --format "$2" 2>/dev/null
}

# shows POD: podman what our record says.
shows() {
    local ours
    ours=$(jq -r '[(.addresses[] | split("/")[0]), .mac] | join(" ")' <<<"${POD_RECORD[$1]}")
    equal "what podman shows of $1" "$ours" "$(inspect "$1" "$SHOWN")"
}

# refused WHAT PART OPTION...: a container that podman cannot give what was asked for, in words that have this part.
refused() {
    local answer
    if answer=$(podman node1 "${RUN[@]:0:3}" --rm "${@:3}" "${RUN[@]:3}" /bin/true 2>&1); then fail "$1 is run"; fi
    contains "$1" "$2" "$answer"
}

kill_conmon() {
    local keeper
    keeper=$(in_runtime_host node1 cat "$(inspect "$1" '{{.ConmonPidFile}}')")
    equal "the keeper of $1" conmon "$(in_runtime_host node1 cat "/proc/$keeper/comm")"
    in_runtime_host node1 kill -KILL "$keeper"
}

is_running() {
    [ "$(inspect "$1" '{{.State.Running}}')" = true ]
}

runtimes_up podman_up "$PORTMAP"
# A network whose plugin does not answer VERSION rightly is left out, and podman takes a bridge of its own.
equal "podman's networks" 'tartan tartan-cni' "$(podman node1 network ls --format '{{.Name}} {{.Driver}}')"
podman_run node2 web2
podman_run node1 web1 -p 8081:5003
shows web1
exchange web1 web2
# A published port, from wherever it may be asked for: another node, its own, its pods, and its own pod.
for NAME in node1 node2 web1 web2; do transfer "$NAME" web1 "$(underlay_of node1 4)" 8081; done
transfer node1 web1 127.0.0.1 8081

say "a pod of two containers, whose keepers are killed"
podman node1 pod create --name pod1 --network tartan --cgroup-parent "/$PREFIX-runtimes" >/dev/null
for NAME in first second; do
    podman node1 "${RUN[0]}" -d --pod pod1 --name "$NAME" "${RUN[@]:1}" /bin/sleep 600 >/dev/null
done
note_pod pod1 node1 "$(podman node1 pod inspect pod1 --format '{{.InfraContainerID}}')"
exchange pod1 web2
for NAME in first second; do
    contains "addresses in $NAME" "$(pod_address pod1)/" "$(podman node1 exec "$NAME" ip address)"
    kill_conmon "$NAME"
done
kill_conmon "${POD_ID[pod1]}"
reaches pod1 "$(pod_address web2)"
podman node1 pod rm -f -t 0 pod1 >/dev/null

say "an address and a MAC that were asked for"
podman_run node1 web3 --ip "$ADDRESS" --mac-address "$MAC"
shows web3
equal "those of web3" "$ADDRESS $MAC" "$(pod_address web3) $(in_pod web3 ip -j link show eth0 | jq -r '.[0].address')"
exchange web3 web2
refused "a second container with that address" "$ADDRESS" --ip "$ADDRESS"
refused "a container with an address of node2" "$(pod_address web2)" --ip "$(pod_address web2)"
podman node1 rm -f -t 0 web1 web3 >/dev/null
forgotten node1

say "podman is killed, and a container: conmon has it detached, without podman"
podman node1 "${RUN[0]}" --name web4 "${RUN[@]:1}" /bin/sleep 600 &
until_true 15 "web4 runs" is_running web4
note_pod web4 node1 "$(inspect web4 '{{.Id}}')"
kill_inside "$!" podman
exchange web4 web2
in_runtime_host node1 kill -KILL "$(inspect web4 '{{.State.Pid}}')"
until_true 10 "web4 is detached" is_detached web4
podman node1 rm -f -t 0 web4 >/dev/null
podman node2 rm -f -t 0 web2 >/dev/null
runtimes_end
