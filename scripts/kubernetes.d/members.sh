# shellcheck shell=bash
# The nodes of the cluster: containerd, kubelet and kube-proxy of each. Sourced by scripts/kubernetes.

IMAGE=localhost/busybox:1
PAUSE=localhost/pause:1

# note_member NUMBER: its line in the record of nodes, as a lab's.
note_member() {
    echo "node$1 tartan $(underlay_address "$1" 4) $(default_vtep_mac "$1") - -" >>"$STATE/nodes"
}

# member_up NUMBER: in a namespace that is on the underlay: its Node object with a pod subnet, and its programs.
member_up() {
    default_route "$1"
    node_certificates "$1"
    if [ -n "$CONTROL_ONLY" ]; then member_object "$1"; else member_programs "$1"; fi
    member_registered "$1"
}

# A node's own packet to a Service needs a route before kube-proxy's rules give it another destination, and Tartan takes
# the interface of this route. Nothing lies behind the gateway.
default_route() {
    ip -n "$PREFIX-node$1" route add default via "$CONTROL_ADDRESS"
}

member_programs() {
    host_up "$1"
    images
    member_files "$1"
    for PROGRAM in containerd kubelet kube-proxy; do member_start "$1" "$PROGRAM"; done
}

# The image of every pod, a busybox, and that of sandboxes, the same with another command.
images() {
    local folder=$STATE/control/image name
    [ ! -e "$folder.tar" ] || return 0
    mkdir -p "$folder/bin" "$folder/dev" "$folder/etc" "$folder/proc" "$folder/root" "$folder/run" "$folder/sys" "$folder/tmp" "$folder/var"
    cp "$(command -v busybox)" "$folder/bin/busybox"
    for name in cat env false hostname httpd ip ls nc nslookup ping ps sh sleep true wget; do ln -s busybox "$folder/bin/$name"; done
    echo 'root:x:0:0:root:/root:/bin/sh' >"$folder/etc/passwd"
    python3 -B "$LAB_HOME/tests.d/tools/oci_image.py" "$folder" "$folder.tar" "$IMAGE" /bin/sh
    python3 -B "$LAB_HOME/tests.d/tools/oci_image.py" "$folder" "$STATE/control/pause.tar" "$PAUSE" /bin/sleep 2147483647
}

# Kubelet's configuration (k8s.io/kubelet/config/v1beta1) and containerd's.
member_files() {
    local folder=$STATE/host-node$1
    jq -n --arg ca "$STATE/control/ca.crt" --arg name "$STATE/control/node$1-kubelet" --arg group "/$PREFIX-kubernetes/node$1" \
        --arg address "$(underlay_address "$1" 4)" '{
            apiVersion: "kubelet.config.k8s.io/v1beta1", kind: "KubeletConfiguration",
            $address, tlsCertFile: "\($name).crt", tlsPrivateKeyFile: "\($name).key",
            authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $ca}},
            authorization: {mode: "Webhook"},
            cgroupDriver: "cgroupfs", cgroupRoot: $group, cgroupsPerQOS: false, enforceNodeAllocatable: [],
            clusterDNS: ["10.96.0.10"], clusterDomain: "cluster.local", failSwapOn: false,
            evictionHard: {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
            imageGCHighThresholdPercent: 100, imageGCLowThresholdPercent: 99,
            volumePluginDir: "/var/lib/kubelet/volume-plugins"}' >"$folder/kubelet.json"
    cat >"$folder/containerd.toml" <<TOML
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$PAUSE"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
TOML
}

# member_start NUMBER PROGRAM: and waits until it answers.
member_start() {
    local node=node$1 folder=$STATE/host-node$1 address
    address=$(underlay_address "$1" 4)
    [ -e "$folder" ] || [ "$2" = tartan ] || die "$node has no runtime host: 'up' was given --control-plane-only"
    if program_lives "$node" "$2"; then die "$2 of $node runs already"; fi
    case $2 in
    containerd)
        host_run "$node" containerd --log-level info --config "$folder/containerd.toml"
        program_answers "$node" containerd 30 in_host "$node" ctr version
        if ! grep -qx "$PAUSE" <<<"$(in_host "$node" ctr -n k8s.io images ls -q)"; then
            in_host "$node" ctr -n k8s.io images import "$STATE/control/image.tar" >/dev/null
            in_host "$node" ctr -n k8s.io images import "$STATE/control/pause.tar" >/dev/null
        fi
        ;;
    kubelet)
        host_run "$node" kubelet --config "$folder/kubelet.json" --kubeconfig "$STATE/control/$node.kubeconfig" \
            --hostname-override "$node" --node-ip "$address" --root-dir /var/lib/kubelet \
            --container-runtime remote --container-runtime-endpoint unix:///run/containerd/containerd.sock
        program_answers "$node" kubelet 60 kubelet_answers "$1"
        ;;
    kube-proxy)
        # Limits of connection tracking are the machine's, in no other namespace than its first.
        host_run "$node" kube-proxy --kubeconfig "$STATE/control/kube-proxy.kubeconfig" --hostname-override "$node" \
            --proxy-mode iptables --cluster-cidr 10.244.0.0/16 --conntrack-max-per-core 0 --conntrack-min 0 \
            --conntrack-tcp-timeout-established 0s --conntrack-tcp-timeout-close-wait 0s --bind-address "$address"
        program_answers "$node" kube-proxy 60 in_host "$node" iptables-nft -t nat -S KUBE-SERVICES
        ;;
    tartan) tartan_start "$1" ;;
    *) wrong "a node runs no '$2': containerd, kubelet, kube-proxy or tartan" ;;
    esac
}

kubelet_answers() {
    [ -n "$(ip netns exec "$PREFIX-node$1" ss -Hltn 'sport = :10250')" ]
}

# Without a kubelet, which registers its node itself.
member_object() {
    jq -n --arg name "node$1" '{apiVersion: "v1", kind: "Node", metadata: {$name, labels: {"kubernetes.io/hostname": $name}}}' |
        in_control kubectl apply -f - >/dev/null
}

# member_registered NUMBER: waits until the controller manager has given it a pod subnet, at most a minute.
member_registered() {
    local wait
    for ((wait = 0; wait < 120; wait++)); do
        if [ -n "$(pod_cidr "$1" 2>/dev/null)" ]; then return 0; fi
        sleep 0.5
    done
    die "node$1 is not registered, or has no pod subnet: see $STATE/host-node$1/kubelet.log and $STATE/control/kube-controller-manager.log"
}

pod_cidr() {
    in_control kubectl get node "node$1" -o 'jsonpath={.spec.podCIDR}'
}

member_ready() {
    in_control kubectl wait --for condition=Ready --timeout "${2:-60}s" node "node$1" >/dev/null ||
        die "node$1 is not ready: $(in_control kubectl get node "node$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].message}')"
}

join() {
    local node
    parse_prefix "$@"
    [ ${#REST[@]} -eq 0 ] || wrong "join does not know '${REST[0]}'"
    load_cluster
    find_kubernetes
    node=$(($(node_numbers | sort -n | tail -n 1) + 1))
    [ "$node" -le 200 ] || die "no node number above 200"
    note_member "$node"
    underlay_host "node$node" "$node"
    member_up "$node"
    if [ -n "$TARTAN" ]; then member_network "$node"; fi
    echo "node$node $(pod_cidr "$node")"
}

# Its pods go to other nodes first, as an administrator would have it.
leave() {
    local node number
    parse_prefix "$@"
    [ ${#REST[@]} -eq 1 ] || wrong "leave needs a node: scripts/kubernetes leave node2"
    load_cluster
    number=${REST[0]##*node}
    node=node$number
    grep -qx "$number" <<<"$(node_numbers)" || die "there is no '$node' in '$PREFIX': see 'scripts/kubernetes list --prefix $PREFIX'"
    if [ -z "$CONTROL_ONLY" ]; then
        in_control kubectl drain "$node" --ignore-daemonsets --force --delete-emptydir-data --timeout 60s >/dev/null ||
            die "the pods of $node do not leave it"
        program_stop "$node" kubelet TERM
    fi
    in_control kubectl delete node "$node" >/dev/null
    sed -i "/^$node /d" "$STATE/nodes"
    if [ -e "$STATE/$node/pid" ]; then program_stop "$node" tartan TERM; fi
    if [ -n "$TARTAN" ]; then network_without "$number"; fi
    host_down "$node"
    groups_down "$node"
    # shellcheck disable=SC2034 # end_processes reads it
    NAMESPACE_INODES=$(stat -L -c %i "/run/netns/$PREFIX-$node")
    end_processes KILL 50
    ip netns delete "$PREFIX-$node"
    rm -rf --one-file-system "${STATE:?}/$node" "$STATE/host-$node" "$STATE/control/$node".* "$STATE/control/$node-kubelet".*
}
