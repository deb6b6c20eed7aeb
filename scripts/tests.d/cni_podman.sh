#!/usr/bin/env bash
# podman with its CNI backend on two nodes: containers and pods reach each other whole, a published port is Debian's
# `portmap` behind us, and what podman removes leaves no trace, nor what was killed before.
#
#   web1, pod1 ── node1 tartan ══ underlay ══ tartan node2 ── web2
#
# cni_podman.sh PART: run; dual, pods of both families; or killed, of podman and of what it leaves running
# case: run
# full: killed
# full: dual
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

PART=${1:-run}
WANTED_ADDRESS=10.244.1.77
WANTED_MAC=02:00:00:00:01:02

# A network whose plugin does not answer VERSION rightly is left out, and podman takes a bridge of its own.
networks() {
    podman "$1" network ls --format '{{.Name}} {{.Driver}}' 2>&1
}

# What podman shows of a container is what our record says.
shown() {
    podman "$1" inspect "$2" --format '{{.NetworkSettings.IPAddress}} {{.NetworkSettings.MacAddress}}'
}

# A published port, from wherever it may be asked for: another node, its own, its pods, and its own pod.
published() {
    local node=$1 pod=$2 port=$3 other=$4 from
    podman "$node" exec -d "$pod" sh -c 'mkdir -p /srv && echo published >/srv/index.html && exec httpd -f -p 80 -h /srv' >/dev/null
    until_true 5 "$pod serves" asked in_pod "$pod" http://127.0.0.1/
    for from in in_ns:node1 in_ns:node2 "in_pod:$pod" "in_pod:$other"; do
        equal "port $port of $node, from ${from#*:}" published "$(asked "${from%%:*}" "${from#*:}" "http://$(underlay_of "$node" 4):$port/")"
    done
    equal "port $port of $node, from itself" published "$(asked in_ns "$node" "http://127.0.0.1:$port/")"
}

asked() {
    "$1" "$2" python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=3).read().decode().strip())' "$3" 2>&1
}

# refused_run NODE OPTION...: what podman says of a container that it cannot give what was asked for.
refused_run() {
    if podman "$1" run --rm --cgroup-parent "/$PREFIX-runtimes" "${@:2}" --rootfs "$SCRATCH/$1/rootfs" /bin/true 2>&1; then
        echo "it was given to it"
    fi
}

run() {
    say "containers"
    podman_run node1 web1 -p 8080:80 -p 8081:5003
    equal "what podman shows of web1" "$(jq -r '"\(.addresses[0] | split("/")[0]) \(.mac)"' <<<"${POD_RECORD[web1]}")" "$(shown node1 web1)"
    exchange web1 web2
    hairpin web1
    transfer web2 web1 "$(underlay_of node1 4)" 8081
    transfer web1 web1 "$(underlay_of node1 4)" 8081
    published node1 web1 8080 web2

    say "a pod of two containers"
    podman node1 pod create --name pod1 --network tartan --cgroup-parent "/$PREFIX-runtimes" >/dev/null
    podman node1 run -d --pod pod1 --name first --rootfs "$SCRATCH/node1/rootfs" /bin/sleep 600 >/dev/null
    podman node1 run -d --pod pod1 --name second --rootfs "$SCRATCH/node1/rootfs" /bin/sleep 600 >/dev/null
    note_pod pod1 node1 "$(podman node1 pod inspect pod1 --format '{{.InfraContainerID}}')"
    exchange pod1 web2
    equal "addresses of the pod's containers" "$(pod_address pod1) $(pod_address pod1)" \
        "$(for name in first second; do podman node1 exec "$name" ip -o -4 addr show eth0 | awk '{ sub("/.*", "", $4); print $4 }'; done | paste -sd ' ')"

    say "an address and a MAC that were asked for"
    podman_run node1 web3 --ip "$WANTED_ADDRESS" --mac-address "$WANTED_MAC"
    equal "what podman shows of web3" "$WANTED_ADDRESS $WANTED_MAC" "$(shown node1 web3)"
    equal "the address and the MAC in web3" "$WANTED_ADDRESS $WANTED_MAC" "$(in_pod web3 ip -j address show eth0 |
        jq -r '.[0] | "\(.addr_info[] | select(.family == "inet").local) \(.address)"')"
    exchange web3 web2
    contains "a second container with that address" "$WANTED_ADDRESS" "$(refused_run node1 --ip "$WANTED_ADDRESS")"
    contains "a container with an address of node2" "$(pod_address web2)" "$(refused_run node1 --ip "$(pod_address web2)")"

    say "all gone"
    podman node1 pod rm -f -t 0 pod1 >/dev/null
    podman node1 rm -f -t 0 web1 web3 >/dev/null
}

dual() {
    podman_run node1 web1
    equal "addresses of web1" "$(pod_address web1 4) $(pod_address web1 6)" \
        "$(in_pod web1 ip -j address show eth0 | jq -r '[.[0].addr_info[] | select(.scope == "global").local] | join(" ")')"
    contains "an address of web1" fd00:10:244:1: "$(pod_address web1 6)"
    equal "what podman shows of web1" "$(pod_address web1 4) $(pod_address web1 6)" \
        "$(podman node1 inspect web1 --format '{{.NetworkSettings.IPAddress}} {{.NetworkSettings.GlobalIPv6Address}}')"
    exchange web1 web2
    podman node1 rm -f -t 0 web1 >/dev/null
}

# podman ends while its container runs, the container's keeper, or the container: what is left podman removes, or has removed.
killed() {
    say "podman, of a container in its foreground"
    in_runtime_host node1 podman run --name web1 --cgroup-parent "/$PREFIX-runtimes" --rootfs "$SCRATCH/node1/rootfs" /bin/sleep 600 &
    PODMAN=$!
    until_true 15 "web1 runs" is_running web1 || die "podman does not start it"
    note_pod web1 node1 "$(podman node1 inspect web1 --format '{{.Id}}')"
    kill_inside "$PODMAN" podman
    exchange web1 web2
    podman node1 rm -f -t 0 web1 >/dev/null
    forgotten node1

    say "conmon"
    podman_run node1 web1
    kill_conmon web1
    reaches web1 "$(pod_address web2)"
    podman node1 rm -f -t 0 web1 >/dev/null
    forgotten node1

    say "conmon of a pod's every container"
    podman node1 pod create --name pod1 --network tartan --cgroup-parent "/$PREFIX-runtimes" >/dev/null
    podman node1 run -d --pod pod1 --name first --rootfs "$SCRATCH/node1/rootfs" /bin/sleep 600 >/dev/null
    note_pod pod1 node1 "$(podman node1 pod inspect pod1 --format '{{.InfraContainerID}}')"
    kill_conmon first
    kill_conmon "$(podman node1 pod inspect pod1 --format '{{.InfraContainerID}}')"
    reaches pod1 "$(pod_address web2)"
    podman node1 pod rm -f -t 0 pod1 >/dev/null
    forgotten node1

    say "the container: conmon has it detached, without podman"
    podman_run node1 web1
    in_runtime_host node1 kill -KILL "$(podman node1 inspect web1 --format '{{.State.Pid}}')"
    until_true 10 "web1 is detached" detached web1 || true
    podman node1 rm -f -t 0 web1 >/dev/null
}

is_running() {
    [ "$(podman node1 inspect "$1" --format '{{.State.Running}}' 2>/dev/null)" = true ]
}

kill_conmon() {
    local keeper
    keeper=$(in_runtime_host node1 cat "$(podman node1 inspect "$1" --format '{{.ConmonPidFile}}')")
    equal "the keeper of $1" conmon "$(in_runtime_host node1 cat "/proc/$keeper/comm")"
    in_runtime_host node1 kill -KILL "$keeper"
}

detached() {
    ! record_of node1 "$(jq -r .container <<<"${POD_RECORD[$1]}")" >/dev/null
}

say "podman"
lab_up --pods 0 --inside "$([ "$PART" = dual ] && echo dual || echo v4)"
for node in node1 node2; do
    runtime_host_up "$node"
    conflist "$node" '{"type": "portmap", "capabilities": {"portMappings": true}}'
    podman_up "$node"
    equal "podman's networks and their drivers on $node" 'tartan tartan-cni' "$(networks "$node")"
    remember "$node"
done
podman_run node2 web2
"$PART"
podman node2 rm -f -t 0 web2 >/dev/null
for node in node1 node2; do
    forgotten "$node"
    nothing_dropped "$node"
done
