# shellcheck shell=bash
# The registry etcd, with flannel's keys below /coreos.com/network. Sourced by scripts/lab.
#
# With --secure it speaks TLS, asks for certificates of clients, and has users: root, and tartan for the nodes, who may
# read and write below the prefix alone.

ETCD_PREFIX=/coreos.com/network
# Of the user tartan, and of root.
ETCD_PASSWORD=tartan-in-the-lab

etcd_prepare() {
    local tls=$STATE/registry/tls
    need_tools etcd etcdctl
    printf '%s\n' ETCDCTL_API=3 "ETCDCTL_ENDPOINTS=http${SECURE:+s}://127.0.0.1:2379" >"$STATE/registry/environment"
    [ -n "$SECURE" ] || return 0
    need_tools openssl
    etcd_certificates "$tls"
    printf '%s\n' "ETCDCTL_CACERT=$tls/ca.pem" "ETCDCTL_CERT=$tls/client.pem" "ETCDCTL_KEY=$tls/client.key" \
        >>"$STATE/registry/environment"
}

# An authority, the server's certificate and one for every client, which has no name that etcd could take for a user.
etcd_certificates() {
    local tls=$1 family names=IP:127.0.0.1 name
    mkdir -m 700 "$tls"
    for family in $(outside); do names+=",IP:$(underlay_address "$REGISTRY_HOST" "$family")"; done
    {
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj "/CN=lab authority" \
            -keyout "$tls/ca.key" -out "$tls/ca.pem"
        for name in server client; do
            openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/O=lab $name" \
                -keyout "$tls/$name.key" -out "$tls/$name.csr"
            openssl x509 -req -in "$tls/$name.csr" -CA "$tls/ca.pem" -CAkey "$tls/ca.key" -CAcreateserial -days 2 \
                -out "$tls/$name.pem" \
                -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names")
        done
    } >"$tls/log" 2>&1 || die "openssl makes no certificates: $(tail -n 3 "$tls/log")"
}

etcd_start() {
    local host urls='' tls=$STATE/registry/tls options=()
    for host in 127.0.0.1 $(registry_hosts); do urls+="${urls:+,}http${SECURE:+s}://$host:2379"; done
    if [ -n "$SECURE" ]; then
        options=(--client-cert-auth --trusted-ca-file "$tls/ca.pem"
            --cert-file "$tls/server.pem" --key-file "$tls/server.key")
    fi
    registry_process etcd --name lab --data-dir "$STATE/registry/data/etcd" --logger zap \
        --listen-client-urls "$urls" --advertise-client-urls "$urls" --listen-peer-urls http://127.0.0.1:2380 \
        --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster lab=http://127.0.0.1:2380 \
        "${options[@]}" "$@"
}

etcd_answers() {
    etcdctl --command-timeout 1s get "$ETCD_PREFIX/config"
}

# As root, once there are users.
etcdctl() {
    registry_in etcdctl "$@"
}

etcd_users() {
    {
        etcdctl user add root --new-user-password "$ETCD_PASSWORD"
        etcdctl user grant-role root root
        etcdctl user add tartan --new-user-password "$ETCD_PASSWORD"
        etcdctl role add tartan
        etcdctl role grant-permission tartan readwrite --prefix=true "$ETCD_PREFIX/"
        etcdctl user grant-role tartan tartan
        etcdctl auth enable
    } >/dev/null
    echo "ETCDCTL_USER=root:$ETCD_PASSWORD" >>"$STATE/registry/environment"
}

# A Tartan node finds its subnet reserved: a key with its public address and without a lifetime, as flannel's
# reservations (flannel, Documentation/reservations.md). A kernel node has the lease of a day that flanneld would have.
etcd_node() {
    local family key='' public six=null lease data
    for family in $(inside); do key+="${key:+&}$(pod_subnet "$1" "$family" | tr / -)"; done
    key=$ETCD_PREFIX/subnets/$key
    if has 6 "$(inside)"; then six="\"$(underlay_address "$1" 6)\""; fi
    public="\"PublicIP\":\"$(underlay_address "$1" 4)\",\"PublicIPv6\":$six"
    if [ "$(node_kind "$1")" = tartan ]; then
        [ -n "$ACQUIRE" ] || etcdctl put "$key" "{$public}" >/dev/null
        return 0
    fi
    data="\"BackendData\":$(kernel_backend_data "$1" 4)"
    if has 6 "$(inside)"; then data+=",\"BackendV6Data\":$(kernel_backend_data "$1" 6)"; fi
    lease=$(etcdctl lease grant 86400 | awk '{ print $2 }')
    etcdctl put --lease="$lease" "$key" "{$public,\"BackendType\":\"vxlan\",$data}" >/dev/null
}

# Whatever has the public address of node $1.
etcd_node_gone() {
    local key
    for key in $(etcd_leases | jq -r --arg four "$(underlay_address "$1" 4)" --arg six "$(underlay_address "$1" 6)" \
        'select(.public4 == $four or .public6 == $six) | .key'); do
        etcdctl del "$key" >/dev/null
    done
}

etcd_options() {
    local tls=$STATE/registry/tls
    printf '%s\n' --etcd-endpoints "http${SECURE:+s}://$(registry_host):2379"
    [ -z "$SECURE" ] || printf '%s\n' --etcd-cafile "$tls/ca.pem" --etcd-certfile "$tls/client.pem" \
        --etcd-keyfile "$tls/client.key" --etcd-username tartan
}

# What is no lease is left out.
etcd_leases() {
    etcdctl get --prefix "$ETCD_PREFIX/subnets/" -w json | jq -c '.kvs // [] | .[]
        | (.key | @base64d) as $key | (.value | @base64d | try fromjson catch empty)
        | {key: $key, subnets: ($key | split("/")[-1] | split("&") | map(sub("-(?<n>[0-9]+)$"; "/\(.n)"))),
            type: (.BackendType // "udp"), public4: .PublicIP, public6: .PublicIPv6,
            mac4: .BackendData.VtepMAC, mac6: .BackendV6Data.VtepMAC}'
}

etcd_save() {
    etcdctl snapshot save "$1" >>"$STATE/registry/log" 2>&1
}

etcd_restore() {
    etcdctl snapshot restore "$1" --name lab --data-dir "$STATE/registry/data/etcd" \
        --initial-cluster lab=http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
        >>"$STATE/registry/log" 2>&1
}
