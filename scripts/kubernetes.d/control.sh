# shellcheck shell=bash
# The control plane: etcd, API server, controller manager and scheduler in the namespace `control`. Sourced by
# scripts/kubernetes.

SERVICE_RANGE=10.96.0.0/16
# What a cluster of Deployments and Services needs, and no cloud, volume or certificate controllers.
CONTROLLERS=daemonset,deployment,endpoint,endpointslice,endpointslicemirroring,garbagecollector,job,namespace,nodeipam,nodelifecycle,podgc,replicaset,root-ca-cert-publisher,serviceaccount,serviceaccount-token

control_up() {
    local program
    for program in etcd kube-apiserver kube-controller-manager kube-scheduler; do control_start "$program"; done
    in_control kubectl apply -f - >/dev/null <"$LAB_HOME/kubernetes.d/access.yaml" || die "the API server refuses kubernetes.d/access.yaml"
}

# control_start PROGRAM: and waits until it answers.
control_start() {
    local control=$STATE/control
    if program_lives control "$1"; then die "$1 runs already"; fi
    case $1 in
    etcd)
        control_run etcd --name "$PREFIX" --data-dir "$control/etcd" --log-level warn --auto-compaction-retention 1h \
            --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
            --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
            --initial-cluster "$PREFIX=http://127.0.0.1:2380"
        program_answers control etcd 30 in_control env ETCDCTL_API=3 etcdctl endpoint health
        ;;
    kube-apiserver)
        control_run kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address "$CONTROL_ADDRESS" \
            --secure-port 6443 --tls-cert-file "$control/apiserver.crt" --tls-private-key-file "$control/apiserver.key" \
            --client-ca-file "$control/ca.crt" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
            --anonymous-auth=false --allow-privileged --service-cluster-ip-range "$SERVICE_RANGE" \
            --service-account-issuer https://kubernetes.default.svc.cluster.local \
            --service-account-signing-key-file "$control/service-account.key" \
            --service-account-key-file "$control/service-account.pub" \
            --kubelet-client-certificate "$control/kubelet-client.crt" --kubelet-client-key "$control/kubelet-client.key" \
            --kubelet-preferred-address-types InternalIP --kubelet-certificate-authority "$control/ca.crt" \
            --endpoint-reconciler-type master-count --apiserver-count 1 --event-ttl 1h
        program_answers control kube-apiserver 60 in_control kubectl get --raw /readyz
        ;;
    kube-controller-manager)
        control_run kube-controller-manager --kubeconfig "$control/controller-manager.kubeconfig" \
            --authentication-kubeconfig "$control/controller-manager.kubeconfig" \
            --authorization-kubeconfig "$control/controller-manager.kubeconfig" \
            --controllers "$CONTROLLERS" --allocate-node-cidrs --cluster-cidr 10.244.0.0/16 --node-cidr-mask-size 24 \
            --service-cluster-ip-range "$SERVICE_RANGE" --use-service-account-credentials --leader-elect=false \
            --root-ca-file "$control/ca.crt" --service-account-private-key-file "$control/service-account.key" \
            --bind-address 127.0.0.1 --port 0
        program_answers control kube-controller-manager 30 in_control kubectl get serviceaccount default
        ;;
    kube-scheduler)
        control_run kube-scheduler --kubeconfig "$control/scheduler.kubeconfig" \
            --authentication-kubeconfig "$control/scheduler.kubeconfig" \
            --authorization-kubeconfig "$control/scheduler.kubeconfig" \
            --leader-elect=false --bind-address 127.0.0.1 --port 0
        program_answers control kube-scheduler 30 scheduler_listens
        ;;
    *) wrong "control runs no '$1': etcd, kube-apiserver, kube-controller-manager or kube-scheduler" ;;
    esac
}

# Its secure port; it has no other.
scheduler_listens() {
    [ -n "$(ip netns exec "$PREFIX-control" ss -Hltn 'sport = :10259')" ]
}

# control_run PROGRAM OPTION...: in the background, with a session of its own.
control_run() {
    local program=$1 folder=$STATE/control
    local path
    shift
    path=$KUBERNETES_BIN/$program
    [ -x "$path" ] || path=$(command -v "$program")
    (
        cd "$folder" || exit
        exec setsid ip netns exec "$PREFIX-control" "$path" "$@"
    ) </dev/null >>"$folder/$program.log" 2>&1 &
    echo $! >"$folder/$program.pid"
    disown
    program_began control "$program"
}

# `kubectl` is the cluster's administrator there. What kubectl caches stays below the cluster's directory.
in_control() {
    ip netns exec "$PREFIX-control" env PATH="$KUBERNETES_BIN:$PATH" KUBECONFIG="$STATE/control/admin.kubeconfig" HOME="$STATE/control" "$@"
}
