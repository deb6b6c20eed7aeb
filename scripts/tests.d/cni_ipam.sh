#!/usr/bin/env bash
# Addresses from Debian's host-local or static, where the configuration delegates to them: what they say is what the
# pod has and what is recorded, and they get it back.
#
# case:
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/runtimes.sh
. "$TOOLS/runtimes.sh"

HOST_LOCAL='{"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24", "rangeStart": "10.244.1.200", "rangeEnd": "10.244.1.201"}]]}'
STATIC='{"type": "static", "addresses": [{"address": "10.244.1.77/24"}]}'

# What host-local has given away.
reserved() {
    in_runtime_host node1 find /var/lib/cni/networks/tartan -type f -name '10.*' -printf '%f\n' 2>/dev/null | sort | paste -sd ' '
}

refused_run() {
    if podman node1 run --rm --cgroup-parent "/$PREFIX-runtimes" --rootfs "$SCRATCH/node1/rootfs" /bin/true 2>&1; then
        echo "it has a network"
    fi
}

lab_up --pods 0
for node in node1 node2; do
    runtime_host_up "$node"
    conflist "$node"
    podman_up "$node"
    remember "$node"
done
podman_run node2 web2

say "host-local"
IPAM=$HOST_LOCAL conflist node1
podman_run node1 web1
podman_run node1 web3
equal "addresses" '10.244.1.200 10.244.1.201' "$(pod_address web1) $(pod_address web3)"
equal "addresses that host-local holds" '10.244.1.200 10.244.1.201' "$(reserved)"
exchange web1 web2
contains "a third pod" 'no IP addresses available' "$(refused_run)"
podman node1 rm -f -t 0 web1 web3 >/dev/null
equal "addresses that host-local holds" '' "$(reserved)"

say "static"
IPAM=$STATIC conflist node1
podman_run node1 web4
equal "address" 10.244.1.77 "$(pod_address web4)"
exchange web4 web2
podman node1 rm -f -t 0 web4 >/dev/null

say "one that is not there"
IPAM='{"type": "nowhere"}' conflist node1
contains "a pod" nowhere "$(refused_run)"

podman node2 rm -f -t 0 web2 >/dev/null
conflist node1
for node in node1 node2; do
    forgotten "$node"
    nothing_dropped "$node"
done
