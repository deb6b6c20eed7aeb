# shellcheck shell=bash
# The control plane: etcd, API server, controller manager and scheduler in the namespace `control`; and the cluster's
# certificates and kubeconfigs, which last a week. Sourced by scripts/kubernetes.
#
#   ca.crt ca.key                         signs all others
#   apiserver.crt                         192.0.2.252, 10.96.0.1, 127.0.0.1, kubernetes.default.svc ...
#   service-account.key, .pub             sign and check the tokens of service accounts
#   NAME.kubeconfig                       admin, controller-manager, scheduler, proxy, and nodeI, a kubelet's
#   kubelet-client.crt                    the API server's, when it asks a kubelet

CONTROL_HOST=252
CONTROL_ADDRESS=$(underlay_address "$CONTROL_HOST" 4)
SERVICE_RANGE=10.96.0.0/16
# What a cluster of Deployments and Services needs, and no cloud, volume or certificate controllers.
CONTROLLERS=daemonset,deployment,endpoint,endpointslice,endpointslicemirroring,garbagecollector,job,namespace,nodeipam
CONTROLLERS+=,nodelifecycle,podgc,replicaset,root-ca-cert-publisher,serviceaccount,serviceaccount-token

control_up() {
    local program
    certificates
    for program in etcd kube-apiserver kube-controller-manager kube-scheduler; do control_start "$program"; done
}

certificates() {
    local folder=$STATE/control names="IP:$CONTROL_ADDRESS,IP:10.96.0.1,IP:127.0.0.1,DNS:localhost" name
    mkdir -p "$folder"
    new_key "$folder/ca.key"
    openssl req -x509 -new -key "$folder/ca.key" -subj "/CN=tartan-lab-$PREFIX" -days 7 -out "$folder/ca.crt" \
        -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
    new_key "$folder/service-account.key"
    openssl pkey -in "$folder/service-account.key" -pubout -out "$folder/service-account.pub"
    for name in kubernetes{,.default{,.svc{,.cluster.local}}}; do names+=",DNS:$name"; done
    certificate apiserver /CN=kube-apiserver serverAuth "$names"
    certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
    kubeconfig admin /O=system:masters/CN=admin
    for name in controller-manager scheduler proxy; do kubeconfig "$name" "/CN=system:kube-$name"; done
}

new_key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

# certificate NAME SUBJECT USAGE [ALTERNATIVES]
certificate() {
    local file=$STATE/control/$1 control=$STATE/control
    new_key "$file.key"
    openssl req -new -key "$file.key" -subj "$2" |
        openssl x509 -req -CA "$control/ca.crt" -CAkey "$control/ca.key" -days 7 -out "$file.crt" \
            -set_serial "0x$(openssl rand -hex 8)" -extfile <(
                printf 'keyUsage=digitalSignature\nextendedKeyUsage=%s\n%s' "$3" "${4:+subjectAltName=$4}"
            ) 2>/dev/null || die "openssl makes no certificate $1"
}

# kubeconfig NAME SUBJECT: with a certificate of its own, everything in one file.
kubeconfig() {
    local control=$STATE/control
    certificate "$1" "$2" clientAuth
    jq -n --arg server "https://$CONTROL_ADDRESS:6443" --arg name "$1" --arg ca "$(base64 -w 0 "$control/ca.crt")" \
        --arg certificate "$(base64 -w 0 "$control/$1.crt")" --arg key "$(base64 -w 0 "$control/$1.key")" '{
            apiVersion: "v1", kind: "Config", "current-context": $name,
            clusters: [{name: "lab", cluster: {$server, "certificate-authority-data": $ca}}],
            users: [{$name, user: {"client-certificate-data": $certificate, "client-key-data": $key}}],
            contexts: [{$name, context: {cluster: "lab", user: $name}}]}' >"$control/$1.kubeconfig"
}

# control_start PROGRAM: and waits until it answers.
control_start() {
    local control=$STATE/control config=$STATE/control/${1#kube-}.kubeconfig
    # Those of controller manager and scheduler, which have no other ports than these.
    local options=(--kubeconfig "$config" --authentication-kubeconfig "$config" --authorization-kubeconfig "$config"
        --leader-elect=false --bind-address 127.0.0.1 --port 0)
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
            --tls-cert-file "$control/apiserver.crt" --tls-private-key-file "$control/apiserver.key" \
            --client-ca-file "$control/ca.crt" --authorization-mode Node,RBAC \
            --enable-admission-plugins NodeRestriction --anonymous-auth=false --allow-privileged \
            --service-cluster-ip-range "$SERVICE_RANGE" \
            --service-account-issuer https://kubernetes.default.svc.cluster.local \
            --service-account-signing-key-file "$control/service-account.key" \
            --service-account-key-file "$control/service-account.pub" \
            --kubelet-client-certificate "$control/kubelet-client.crt" \
            --kubelet-client-key "$control/kubelet-client.key" --kubelet-certificate-authority "$control/ca.crt" \
            --kubelet-preferred-address-types InternalIP --endpoint-reconciler-type master-count --apiserver-count 1
        program_answers control kube-apiserver 60 in_control kubectl get --raw /readyz
        ;;
    kube-controller-manager)
        control_run kube-controller-manager "${options[@]}" --controllers "$CONTROLLERS" --allocate-node-cidrs \
            --cluster-cidr 10.244.0.0/16 --node-cidr-mask-size 24 --service-cluster-ip-range "$SERVICE_RANGE" \
            --use-service-account-credentials --root-ca-file "$control/ca.crt" \
            --service-account-private-key-file "$control/service-account.key"
        program_answers control kube-controller-manager 30 in_control kubectl get serviceaccount default
        ;;
    kube-scheduler)
        control_run kube-scheduler "${options[@]}"
        program_answers control kube-scheduler 30 listens control 10259
        ;;
    *) wrong "control runs no '$1': etcd, kube-apiserver, kube-controller-manager or kube-scheduler" ;;
    esac
}

listens() {
    [ -n "$(ip netns exec "$PREFIX-$1" ss -Hltn "sport = :$2")" ]
}

control_run() {
    program_run control "$1" ip netns exec "$PREFIX-control" "$@"
}

# `kubectl` is the cluster's administrator there. What kubectl caches stays below the cluster's directory.
in_control() {
    ip netns exec "$PREFIX-control" env KUBECONFIG="$STATE/control/admin.kubeconfig" HOME="$STATE/control" "$@"
}
