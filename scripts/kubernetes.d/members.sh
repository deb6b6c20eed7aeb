# shellcheck shell=bash
# The nodes of the cluster: containerd, kubelet and kube-proxy of each. Sourced by scripts/kubernetes.

IMAGE=localhost/busybox:1
PAUSE=localhost/pause:1

# member_up NODE ADDRESS: in a namespace that is on the underlay: its Node object with a pod subnet, and its programs.
member_up() {
    local program
    # A node's own packet to a Service needs a route before kube-proxy's rules give it another destination, and Tartan
    # takes the interface of this route. Nothing lies behind the gateway.
    ip -n "$PREFIX-$1" route add default via "$CONTROL_ADDRESS"
    # The kubelet's, as the Node authorizer knows it.
    kubeconfig "$1" "/O=system:nodes/CN=system:node:$1"
    certificate "$1-kubelet" "/O=system:nodes/CN=system:node:$1" serverAuth "IP:$2,DNS:$1"
    if [ -n "$CONTROL_ONLY" ]; then
        # Without a kubelet, which registers its node itself.
        jq -n --arg name "$1" '{apiVersion: "v1", kind: "Node",
            metadata: {$name, labels: {"kubernetes.io/hostname": $name}}}' | in_control kubectl apply -f - >/dev/null
    else
        host_up "$1"
        images
        member_files "$1" "$2"
        for program in containerd kubelet kube-proxy; do member_start "$1" "$program"; done
    fi
    within 60 has_subnet "$1" ||
        die "$1 is not registered, or has no pod subnet: see kubelet.log and kube-controller-manager.log below $STATE"
}

has_subnet() {
    [ -n "$(in_control kubectl get node "$1" -o 'jsonpath={.spec.podCIDR}' 2>/dev/null)" ]
}

# The image of every pod, a busybox, and that of sandboxes, the same with another command.
images() {
    local folder=$STATE/control/image name pack=(python3 -B "$LAB_HOME/tests.d/tools/oci_image.py")
    [ ! -e "$folder.tar" ] || return 0
    mkdir -p "$folder"/{bin,dev,etc,proc,root,run,sys,tmp,var}
    cp "$(command -v busybox)" "$folder/bin/busybox"
    for name in cat hostname httpd ip nc ping ps sh sleep wget; do ln -s busybox "$folder/bin/$name"; done
    echo 'root:x:0:0:root:/root:/bin/sh' >"$folder/etc/passwd"
    "${pack[@]}" "$folder" "$folder.tar" "$IMAGE" /bin/sh
    "${pack[@]}" "$folder" "$STATE/control/pause.tar" "$PAUSE" /bin/sleep 2147483647
}

# member_files NODE ADDRESS: kubelet's configuration (k8s.io/kubelet/config/v1beta1) and containerd's.
member_files() {
    jq -n --arg ca "$STATE/control/ca.crt" --arg name "$STATE/control/$1-kubelet" --arg address "$2" \
        --arg group "/$PREFIX-kubernetes/$1" '{
            apiVersion: "kubelet.config.k8s.io/v1beta1", kind: "KubeletConfiguration",
            $address, tlsCertFile: "\($name).crt", tlsPrivateKeyFile: "\($name).key",
            authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $ca}},
            authorization: {mode: "Webhook"},
            cgroupDriver: "cgroupfs", cgroupRoot: $group, cgroupsPerQOS: false, enforceNodeAllocatable: [],
            clusterDNS: ["10.96.0.10"], clusterDomain: "cluster.local", failSwapOn: false,
            evictionHard: (["memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"]
                | map({(.): "0%"}) | add),
            imageGCHighThresholdPercent: 100, imageGCLowThresholdPercent: 99,
            volumePluginDir: "/var/lib/kubelet/volume-plugins"}' >"$STATE/host-$1/kubelet.json"
    cat >"$STATE/host-$1/containerd.toml" <<TOML
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

# member_start NODE PROGRAM: and waits until it answers.
member_start() {
    local folder=$STATE/host-$1 address image
    address=$(underlay_address "${1#node}" 4)
    case $2 in
    containerd)
        host_run "$1" containerd --log-level info --config "$folder/containerd.toml"
        program_answers "$1" containerd 30 in_host "$1" ctr version
        for image in "$STATE/control"/*.tar; do in_host "$1" ctr -n k8s.io images import "$image" >/dev/null; done
        ;;
    kubelet)
        host_run "$1" kubelet --config "$folder/kubelet.json" --kubeconfig "$STATE/control/$1.kubeconfig" \
            --hostname-override "$1" --node-ip "$address" --root-dir /var/lib/kubelet \
            --container-runtime remote --container-runtime-endpoint unix:///run/containerd/containerd.sock
        program_answers "$1" kubelet 60 listens "$1" 10250
        ;;
    kube-proxy)
        # Limits of connection tracking are the machine's, in no other namespace than its first.
        host_run "$1" kube-proxy --kubeconfig "$STATE/control/proxy.kubeconfig" --hostname-override "$1" \
            --proxy-mode iptables --cluster-cidr 10.244.0.0/16 --conntrack-max-per-core 0 --conntrack-min 0 \
            --conntrack-tcp-timeout-established 0s --conntrack-tcp-timeout-close-wait 0s --bind-address "$address"
        program_answers "$1" kube-proxy 60 in_host "$1" iptables-nft -t nat -S KUBE-SERVICES
        ;;
    *) wrong "a node runs no '$2': containerd, kubelet or kube-proxy" ;;
    esac
}
