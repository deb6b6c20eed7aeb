# shellcheck shell=bash
# The cluster's certificates and kubeconfigs, which last a week. Sourced by scripts/kubernetes.
#
#   ca.crt ca.key                         signs all others
#   apiserver.crt                         192.0.2.252, 10.96.0.1, 127.0.0.1, kubernetes.default.svc ...
#   service-account.key, .pub             sign and check the tokens of service accounts
#   NAME.kubeconfig                       admin, controller-manager, scheduler, kube-proxy, tartan, and nodeI, a kubelet's
#   kubelet-client.crt                    the API server's, when it asks a kubelet

CONTROL_HOST=252
CONTROL_ADDRESS=$(underlay_address "$CONTROL_HOST" 4)
CERTIFICATE_DAYS=7

certificates() {
    local folder=$STATE/control
    mkdir -p "$folder"
    new_key "$folder/ca.key"
    openssl req -x509 -new -key "$folder/ca.key" -subj "/CN=tartan-lab-$PREFIX" -days "$CERTIFICATE_DAYS" -out "$folder/ca.crt" \
        -addext basicConstraints=critical,CA:true -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
    new_key "$folder/service-account.key"
    openssl pkey -in "$folder/service-account.key" -pubout -out "$folder/service-account.pub"
    certificate apiserver /CN=kube-apiserver serverAuth \
        "IP:$CONTROL_ADDRESS,IP:10.96.0.1,IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
    kubeconfig admin /O=system:masters/CN=admin
    kubeconfig controller-manager /CN=system:kube-controller-manager
    kubeconfig scheduler /CN=system:kube-scheduler
    kubeconfig kube-proxy /CN=system:kube-proxy
    kubeconfig tartan /CN=tartan
}

# node_certificates NUMBER: the kubelet's, as the Node authorizer knows it.
node_certificates() {
    kubeconfig "node$1" "/O=system:nodes/CN=system:node:node$1"
    certificate "node$1-kubelet" "/O=system:nodes/CN=system:node:node$1" serverAuth "IP:$(underlay_address "$1" 4),DNS:node$1"
}

new_key() {
    (
        umask 077
        openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
    )
}

# certificate NAME SUBJECT USAGE [ALTERNATIVES]
certificate() {
    local file=$STATE/control/$1
    [ -e "$file.key" ] || new_key "$file.key"
    openssl req -new -key "$file.key" -subj "$2" |
        openssl x509 -req -CA "$STATE/control/ca.crt" -CAkey "$STATE/control/ca.key" -days "$CERTIFICATE_DAYS" -out "$file.crt" \
            -set_serial "0x$(openssl rand -hex 8)" \
            -extfile <(printf 'keyUsage=digitalSignature\nextendedKeyUsage=%s\n' "$3" && printf '%s' "${4:+subjectAltName=$4}") \
            2>/dev/null || die "openssl makes no certificate $1"
}

# kubeconfig NAME SUBJECT: with a certificate of its own, everything in one file.
kubeconfig() {
    local file=$STATE/control/$1
    certificate "$1" "$2" clientAuth
    (
        umask 077
        jq -n --arg server "https://$CONTROL_ADDRESS:6443" --arg name "$1" --arg ca "$(base64 -w 0 "$STATE/control/ca.crt")" \
            --arg certificate "$(base64 -w 0 "$file.crt")" --arg key "$(base64 -w 0 "$file.key")" '{
            apiVersion: "v1", kind: "Config", "current-context": $name,
            clusters: [{name: "lab", cluster: {$server, "certificate-authority-data": $ca}}],
            users: [{$name, user: {"client-certificate-data": $certificate, "client-key-data": $key}}],
            contexts: [{$name, context: {cluster: "lab", user: $name}}]}' >"$file.kubeconfig"
    )
}
