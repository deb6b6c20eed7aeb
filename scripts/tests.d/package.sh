#!/usr/bin/env bash
# What scripts/release makes is what it should be: the Debian package is installed in a machine with systemd, forwards,
# is upgraded under load, is not removed from under a pod, and leaves nothing after a purge; the image runs under podman
# with CAP_NET_ADMIN and /dev/net/tun alone. Every day both are made of the tests' programs; with --full they are built
# as for a release, twice and elsewhere, and are the same bytes.
#
#   pod0 ── machine node1: tartan.deb ══ underlay ══ node2: tartan ── pod1
#   node1: podman, tartan:VERSION ══ underlay ══ node2: tartan ── pod1
#
# package.sh PART: deb, image or release
# alone deb: it measures a pause
# alone release: two builds of the whole program
# seconds release: 7200: each of them for two machines, optimised as a whole
# case: deb
# case: image
# full: release
# shellcheck source=/dev/null
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
. "$TOOLS/machine.sh"
. "$TOOLS/made_release.sh"

VERSION=$(sed -nE 's/^version = "(.*)"/\1/p' "$SCRIPTS/../Cargo.toml" | head -n 1)
IMAGE=localhost/tartan:$VERSION
# What lintian is not to say of the tests' programs: they are linked with the system's libraries.
UNLIKE_RELEASE=undeclared-elf-prerequisites

# A bill of materials that lists what the lock file has, and nothing of tests alone; and a text for what asks for one.
papers() {
    equal "form of the bill of materials; whether it has enough crates, with licences and checksums; those of tests" \
        '["CycloneDX","1.5",true,[]]' "$(jq -c '[.bomFormat, .specVersion, (.components | length > 100
            and all(.purl and .licenses) and any(.name == "ring" and .hashes)),
            [.components[].name | select(. == "proptest" or . == "smoltcp")]]' "$DIST"/*.cdx.json)"
    # shellcheck disable=SC2016
    equal "components that nothing needs, or that are missing" '[]' "$(jq -c '[.dependencies[].dependsOn[]?] as $used
        | ([.components[]["bom-ref"]] - $used) + ($used - [.components[]["bom-ref"]])' "$DIST"/*.cdx.json)"
    grep -q 'Permission is hereby granted' "$DIST"/*-licences.txt || fail "the texts of the licences are missing"
}

# lints PACKAGE: what lintian says of it.
lints() {
    lintian --fail-on none --allow-root ${UNLIKE_RELEASE:+--suppress-tags "$UNLIKE_RELEASE"} "$1" 2>&1 |
        grep -vE "^N: ${UNLIKE_RELEASE:+| mismatched-override }"
}

# Triggers of other packages (man-db) are theirs, and take long.
dpkg_in_machine() {
    in_machine env DEBIAN_FRONTEND=noninteractive dpkg --no-triggers "$@" >"$SCRATCH/dpkg" 2>&1
}

# installs FILE: into the machine, in the place of what is there.
installs() {
    install -m 644 "$1" "$ROOT/root/tartan.deb"
    dpkg_in_machine --install /root/tartan.deb || die "dpkg --install of $1: $(cat "$SCRATCH/dpkg")"
}

dpkg_says() {
    grep -q "$1" "$SCRATCH/dpkg" || fail "the package does not say '$1': $(cat "$SCRATCH/dpkg")"
}

deb() {
    local keeper before later=$SCRATCH/later deb=("$DIST"/*.deb) examples=usr/share/doc/tartan/examples
    papers
    equal "lintian" '' "$(lints "${deb[0]}")"
    # As a later version: the same files, which replace the first ones.
    dpkg-deb --raw-extract "${deb[0]}" "$later"
    sed -i "s/^Version: .*/&+later/" "$later/DEBIAN/control"
    dpkg-deb --root-owner-group -Znone --build "$later" "$later.deb" >/dev/null
    machine_lab
    before=$(traces)
    installs "${deb[0]}"
    equal "the unit at first" "loaded inactive disabled" "$(property LoadState ActiveState UnitFileState)"
    equal "systemd-analyze verify" '' "$(in_machine systemd-analyze verify tartan.service 2>&1 | grep -v 'man tartan')"
    equal "files of the package that are not as they were packed" '' "$(in_machine dpkg --verify tartan)"
    in_machine systemctl --quiet enable --now tartan
    install_plugin
    machine_pod ADD
    keeper=$(property MainPID)
    under_load "upgrade" 1000 installs "$later.deb"
    equal "datagrams lost" 0 "$LOST"
    dpkg_says 'upgraded from .*, service and keeper$'
    machine_forwards 0
    equal "the keeper, and the programs of keeper and service" "$keeper /usr/bin/tartan /usr/bin/tartan" \
        "$(property MainPID) $(readlink "/proc/$(keeper_of)/exe" "/proc/$(service_of node1)/exe" | paste -sd ' ')"
    equal "the unit, and the version" "active enabled $VERSION+later" "$(property ActiveState UnitFileState) $(
        in_machine dpkg-query --show --showformat "\${Version}" tartan)"
    echo 'workers = 2' >>"$ROOT/etc/tartan/tartan.toml"
    under_load "an upgrade that cannot be without a restart" 8000 installs "$later.deb"
    dpkg_says 'not upgraded; .*workers'
    dpkg_says 'for the reason above, is restarted'
    machine_forwards "$keeper"
    equal "workers" 2 "$(agent_json node1 status | jq .workers)"
    # An agent that does not run stays so.
    in_machine systemctl stop tartan
    installs "${deb[0]}"
    equal "the unit" inactive "$(property ActiveState)"
    if grep -q 'restarted' "$SCRATCH/dpkg"; then fail "it speaks of a restart: $(cat "$SCRATCH/dpkg")"; fi
    in_machine systemctl start tartan
    machine_forwards 0
    # What README.Debian has the administrator install goes too.
    drop_in "$ROOT/$examples/tartan-kernel-path.conf" systemd/system/tartan.service.d/kernel-path.conf
    drop_in "$ROOT/$examples/tartan-networkd.conf" systemd/networkd.conf.d/tartan.conf
    if dpkg_in_machine --remove tartan; then fail "the package was removed from under a pod"; fi
    dpkg_says 'drain the node first'
    equal "the unit after a refused removal" active "$(property ActiveState)"
    reaches_peer "after a refused removal"
    machine_pod DEL
    dpkg_in_machine --purge tartan || fail "dpkg --purge: $(cat "$SCRATCH/dpkg")"
    [ ! -e "$ROOT/etc/tartan" ] || fail "a purge leaves /etc/tartan"
    same "files and network of the machine, before the installation and after" "$before" "$(traces)"
    machine_down
}

# run OPTION...: as docs/install.md says; settings of the kernel by a mount.
run() {
    podman node1 run --network host --cgroup-parent "/$PREFIX-runtimes" --cap-drop ALL --cap-add NET_ADMIN \
        -v /run/tartan:/run/tartan -v /run/flannel:/run/flannel -v /var/lib/tartan:/var/lib/tartan \
        -v /proc/sys/net:/host/proc/sys/net -e TARTAN_PROBE -e TARTAN_NODE_NAME=node1 --name tartan "$@"
}

# In a container whose file system cannot be written.
AGENT=(--read-only --security-opt no-new-privileges -v /etc/tartan:/etc/tartan:ro)

# forwards_by IMAGE [OPTION...]: of an agent's container with these options.
forwards_by() {
    run -d --restart=always "${AGENT[@]}" "${@:2}" "$1" >/dev/null || die "podman does not run the image"
    until_true 15 "the container forwards" container_says 'the service forwards' ||
        die "$(podman node1 logs tartan 2>&1 | tail -n 30)"
}

in_container() {
    podman node1 exec tartan /usr/bin/tartan "$@"
}

container_says() {
    grep -q "$1" <<<"$(podman node1 logs tartan 2>&1)"
}

# By podman stop, after which the restart policy starts it no more.
container_ends() {
    podman node1 stop --time 15 tartan >/dev/null
    equal "how the container ended" 0 "$(podman node1 inspect tartan --format '{{.State.ExitCode}}')"
    podman node1 rm tartan >/dev/null
}

# plugin install|uninstall: as the init container of deploy/kubernetes does; what is there then.
plugin() {
    podman node1 run --rm --network none --cgroup-parent "/$PREFIX-runtimes" --cap-drop ALL -v /run/tartan:/run/tartan \
        -v /opt/cni/bin:/opt/cni/bin -v /etc/cni/net.d:/etc/cni/net.d -v /var/lib/tartan:/var/lib/tartan \
        "$IMAGE" cni "$1" >"$SCRATCH/plugin" 2>&1 || fail "cni $1 in a container: $(cat "$SCRATCH/plugin")"
    in_runtime_host node1 find /opt/cni /etc/cni -name '*tartan*' -size +0 -printf '%f\n' | sort | paste -sd ' '
}

image() {
    local before archive=("$DIST"/*-image-*.tar)
    # shellcheck source=scripts/tests.d/tools/runtimes.sh
    . "$TOOLS/runtimes.sh"
    lab_up --pods 0
    lab attach node2 >/dev/null
    lab stop node1 >/dev/null
    in_ns node1 tartan cleanup >/dev/null
    runtime_host_up node1
    podman_up node1
    podman node1 load --quiet --input "${archive[0]}" >/dev/null || die "podman does not load the image"
    before=$(machine_network node1)
    in_runtime_host node1 mkdir -p /etc/tartan /run/tartan /run/flannel /var/lib/tartan
    in_runtime_host node1 cp "$LAB_STATE/node1/net-conf.json" "$LAB_STATE/node1/nodes.toml" /etc/tartan/
    forwards_by "$IMAGE" --device /dev/net/tun
    equal "version, and problems that it reports" "tartan $VERSION []" \
        "$(in_container --version) $(in_container status -o json | jq -c '[.problems[].code]')"
    in_runtime_host node1 rm -f /opt/cni/bin/tartan-cni
    equal "the plugin on the host" '10-tartan.conflist tartan-cni' "$(plugin install)"
    containers_follow
    equal "what is left of the plugin" '' "$(plugin uninstall)"
    run --rm "$IMAGE" cleanup || fail "cleanup in a container ended with $?"
    # As the container of a DaemonSet, which must not end by itself.
    run -d "$IMAGE" cleanup --stay >/dev/null
    until_true 10 "cleanup --stay has done its work" container_says '/run/tartan: it is empty' || true
    equal "whether it stays" true "$(podman node1 inspect tartan --format '{{.State.Running}}')"
    container_ends
    same "network of node1, before the image was run and after" "$before" "$(machine_network node1)"
    # The directories of the host's that are mounted stay, empty.
    in_runtime_host node1 rmdir /run/tartan /run/flannel /var/lib/tartan || fail "a directory of Tartan's is not empty"
}

# One of another image, one that makes the device itself, and one that cannot, which ends and says so, while a
# connection of the node to pod1 goes on.
containers_follow() {
    local code=0
    serve pod1
    hold "node1 to pod1" node1 "$(address_of pod1)" "$PORT"
    podman node1 tag "$IMAGE" localhost/tartan:newer
    container_ends
    forwards_by localhost/tartan:newer --device /dev/net/tun
    all_go_on "after the container was replaced"
    container_ends
    forwards_by localhost/tartan:newer --cap-add MKNOD
    all_go_on "after a container that has no device took its place"
    container_says 'made /dev/net/tun' || fail "a container without the device has not made the file"
    container_ends
    run "${AGENT[@]}" "$IMAGE" >"$SCRATCH/container" 2>&1 || code=$?
    equal "exit code of a container without the device" 1 "$code"
    container_says '/dev/net/tun cannot be opened' || fail "it does not say what it lacks: $(cat "$SCRATCH/container")"
    podman node1 rm tartan >/dev/null
    forwards_by "$IMAGE" --device /dev/net/tun
    all_go_on "after one that could not have it"
    load_survived
    container_ends
}

# Twice, from two clones of the same commit in directories of different names, for both architectures. The second is
# asked for from its caller's directory.
release() {
    local copy list built=$SCRATCH/one/target dist=$SCRATCH/one.dist
    for copy in one a-second-clone; do
        git clone --quiet --shared "$SCRIPTS/.." "$SCRATCH/$copy"
        # One that ends on its way is in the way of no other.
        "$SCRATCH/$copy/scripts/release" --binaries /nothing --output "$SCRATCH/$copy.dist" >/dev/null 2>&1 || true
        (cd "$SCRATCH" && env -u CARGO_TARGET_DIR "$copy/scripts/release" --target x86_64-unknown-linux-musl \
            --target aarch64-unknown-linux-musl --output "$copy.dist") >"$SCRATCH/$copy.log" 2>&1 ||
            die "scripts/release: $(tail -n 20 "$SCRATCH/$copy.log")"
    done
    same "the files of both builds" "$(cat "$dist/SHA256SUMS")" "$(cat "$SCRATCH/a-second-clone.dist/SHA256SUMS")"
    equal "what the arm64 program says of itself" "tartan $VERSION" \
        "$(qemu-aarch64-static "$built/aarch64-unknown-linux-musl/release/tartan" --version)"
    UNLIKE_RELEASE=
    equal "lintian of the arm64 package" '' "$(lints "$dist"/*arm64.deb)"
    list=$(tar -xOf "$dist/tartan-$VERSION-image.tar" index.json | jq -r '.manifests[0].digest | sub(":"; "/")')
    equal "machines of the image for all" 'amd64 arm64' "$(tar -xOf "$dist/tartan-$VERSION-image.tar" "blobs/$list" |
        jq -r '[.manifests[].platform.architecture] | sort | join(" ")')"
    rm "$dist"/*arm64* "$dist/tartan-$VERSION-image.tar"
    BIN=$built/x86_64-unknown-linux-musl/release
    export LAB_BIN=$BIN
    if grep -qaF -e "$SCRATCH" -e "${CARGO_HOME:-$HOME/.cargo}" "$BIN/tartan"; then
        fail "the program holds paths of this machine"
    fi
    DIST=$dist
    deb
    lab down
    image
}

case ${1:-} in
deb | image)
    make_release "$1"
    "$1"
    ;;
release) release ;;
*) die "deb, image or release?" ;;
esac
