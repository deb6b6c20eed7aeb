#!/usr/bin/env bash
# What scripts/release makes is what it should be: the Debian package is installed in a machine with systemd, forwards, is
# upgraded while pings run, is not removed from under a pod, and leaves nothing after a purge; the image runs under podman with
# CAP_NET_ADMIN and /dev/net/tun alone. Every day both are made of the tests' programs; with --full they are built as for a
# release, twice and elsewhere, and are the same bytes.
#
#   pod ── machine node1: tartan.deb ══ underlay ══ node2: tartan ── pod1
#   node1: podman, tartan:VERSION ══ underlay ══ node2: tartan ── pod1
#
# package.sh PART: deb, image or release
# alone deb: it measures a pause
# alone release: two builds of the whole program
# seconds release: 7200: each of them for two machines, optimised as a whole
# case: deb
# case: image
# full: release
# shellcheck source=scripts/tests.d/tools/test_case.sh
. "$(dirname "$(readlink -f "$0")")/tools/test_case.sh"
# shellcheck source=scripts/tests.d/tools/kill_service.sh
. "$TOOLS/kill_service.sh"
# shellcheck source=scripts/tests.d/tools/machine.sh
. "$TOOLS/machine.sh"
# shellcheck source=scripts/tests.d/tools/made_release.sh
. "$TOOLS/made_release.sh"
# shellcheck source=scripts/tests.d/tools/held_load.sh
. "$TOOLS/held_load.sh"

PART=${1:-deb}
HOME_OF_TEST=$(readlink -f "$SCRIPTS/..")
# What lintian is not to say of the tests' programs: they are linked with the system's libraries, and have their symbols. What
# is said of static programs does not hold for all of them.
UNLIKE_RELEASE=unstripped-binary-or-object,undeclared-elf-prerequisites
# Milliseconds that an upgrade may cost: the new service takes over while packets wait.
LARGEST_GAP=1000
# Of a restart.
LARGEST_GAP_OF_RESTART=8000
# What the image needs of the host to install its plugin.
PLUGIN_MOUNTS=(-v /opt/cni/bin:/opt/cni/bin -v /etc/cni/net.d:/etc/cni/net.d -v /var/lib/tartan:/var/lib/tartan)

# A bill of materials that lists what the lock file has, and a text for what asks for one.
papers() {
    local bill=("$DIST"/*.cdx.json)
    equal "form of the bill of materials" "CycloneDX 1.5" "$(jq -r '"\(.bomFormat) \(.specVersion)"' "${bill[0]}")"
    jq -e '.components | length > 100 and all(.purl and .licenses) and any(.name == "ring" and .hashes)' "${bill[0]}" >/dev/null ||
        fail "the bill of materials lacks crates, licences or checksums"
    # Of tests alone, so of no program.
    jq -e '.components | all(.name != "proptest" and .name != "smoltcp")' "${bill[0]}" >/dev/null || fail "crates of tests are listed"
    # shellcheck disable=SC2016
    equal "components that nothing depends on, or that are missing" '[]' "$(jq -c '[.dependencies[].dependsOn[]?] as $used
        | ([.components[]["bom-ref"]] - $used) + ($used - [.components[]["bom-ref"]])' "${bill[0]}")"
    grep -q 'Permission is hereby granted' "$DIST"/*-licences.txt || fail "the texts of the licences are missing"
}

deb_of_machine() {
    local deb=("$DIST"/*.deb) later
    if command -v lintian >/dev/null; then
        equal "lintian" '' "$(lintian --fail-on none --allow-root ${UNLIKE_RELEASE:+--suppress-tags "$UNLIKE_RELEASE"} "${deb[0]}" 2>&1 |
            grep -vE "^N: ${UNLIKE_RELEASE:+| mismatched-override }")"
    else
        fail "there is no lintian: run scripts/install --lints"
    fi
    # As versions later: the same files, which replace the first ones.
    dpkg-deb --raw-extract "${deb[0]}" "$SCRATCH/later"
    for later in later latest; do
        sed -i "s/^Version: .*/&+$later/" "$SCRATCH/later/DEBIAN/control"
        dpkg-deb --root-owner-group -Znone --build "$SCRATCH/later" "$SCRATCH/$later.deb" >/dev/null
        into_machine node1 644 "$SCRATCH/$later.deb" /root
    done
    into_machine node1 644 "${deb[0]}" /root
    DEB=/root/$(basename "${deb[0]}")
}

dpkg_in_machine() {
    # Triggers of other packages (man-db) are theirs, and take long.
    in_machine node1 env DEBIAN_FRONTEND=noninteractive dpkg --no-triggers "$@" >"$SCRATCH/dpkg" 2>&1
}

# What is there beside Tartan: not what dpkg itself notes, the test's own files, nor the directories of CNI, which stay.
traces() {
    machine_files node1 | grep -vE ' \./(root|var/lib/dpkg|var/log)[^ ]*| \./(opt/cni|opt/cni/bin|etc/cni|etc/cni/net.d)( |$)'
    machine_network node1
}

deb() {
    local keeper before said
    lab_up --pods 0
    lab attach node2 >/dev/null
    machine_node node1
    deb_of_machine
    before=$(traces)
    say "install"
    dpkg_in_machine --install "$DEB" || die "dpkg --install: $(cat "$SCRATCH/dpkg")"
    equal "the unit after a first installation" "loaded inactive disabled" \
        "$(unit_property node1 LoadState) $(unit_property node1 ActiveState) $(unit_property node1 UnitFileState)"
    equal "systemd-analyze verify" '' "$(in_machine node1 systemd-analyze verify tartan.service 2>&1 | grep -v 'man tartan')"
    equal "files of the package that are not as they were packed" '' "$(in_machine node1 dpkg --verify tartan)"
    in_machine node1 systemctl --quiet enable --now tartan
    until_true 15 "node1 forwards" forwarding node1 || die "$(in_machine node1 journalctl --no-pager -u tartan | tail -n 30)"
    in_machine node1 tartan cni install >/dev/null || fail "tartan cni install ended with $?"
    machine_pod node1 pod
    start_pings node1 pod "$(address_of pod1)"
    keeper=$(unit_property node1 MainPID)

    say "upgrade"
    dpkg_in_machine --install /root/later.deb || fail "dpkg --install of the later version: $(cat "$SCRATCH/dpkg")"
    until_true 15 "node1 forwards after the upgrade" forwarding node1
    sleep 0.5
    stop_pings "upgrade" "$LARGEST_GAP"
    equal "pings lost" 0 "$(pings_lost)"
    grep -q 'upgraded from .*, service and keeper$' "$SCRATCH/dpkg" || fail "the package does not say that it has upgraded the agent: $(cat "$SCRATCH/dpkg")"
    equal "the keeper, and its program" "$keeper /usr/bin/tartan" \
        "$(unit_property node1 MainPID) $(in_machine node1 readlink "/proc/$keeper/exe")"
    equal "the program of the service" /usr/bin/tartan "$(in_machine node1 readlink "/proc/$(machine_service node1)/exe")"
    equal "the unit after an upgrade" "active enabled" "$(unit_property node1 ActiveState) $(unit_property node1 UnitFileState)"
    # shellcheck disable=SC2016
    equal "version" "$(dpkg-deb --field "$SCRATCH/later.deb" Version)" "$(in_machine node1 dpkg-query --show --showformat '${Version}' tartan)"

    say "an upgrade that cannot be without a restart"
    keeper=$(unit_property node1 MainPID)
    echo 'workers = 2' | in_machine node1 dd of=/etc/tartan/tartan.toml oflag=append conv=notrunc status=none
    start_pings node1 pod "$(address_of pod1)"
    dpkg_in_machine --install /root/latest.deb || fail "dpkg --install of the latest version: $(cat "$SCRATCH/dpkg")"
    until_true 15 "another keeper, which forwards" restarted "$keeper"
    sleep 0.5
    stop_pings "restart" "$LARGEST_GAP_OF_RESTART"
    for said in 'not upgraded; .*workers' 'for the reason above, is restarted'; do
        grep -q "$said" "$SCRATCH/dpkg" || fail "the package does not say '$said': $(cat "$SCRATCH/dpkg")"
    done
    equal "workers" 2 "$(in_machine node1 tartan status -o json | jq .workers)"

    say "an upgrade of an agent that does not run"
    in_machine node1 systemctl stop tartan
    dpkg_in_machine --install /root/later.deb || fail "dpkg --install while the agent does not run: $(cat "$SCRATCH/dpkg")"
    equal "the unit" inactive "$(unit_property node1 ActiveState)"
    if grep -q 'restarted' "$SCRATCH/dpkg"; then fail "it speaks of a restart: $(cat "$SCRATCH/dpkg")"; fi
    in_machine node1 systemctl start tartan
    until_true 15 "node1 forwards again" forwarding node1

    say "remove and purge"
    drop_ins
    if dpkg_in_machine --remove tartan; then fail "the package was removed from under a pod"; fi
    grep -q 'drain the node first' "$SCRATCH/dpkg" || fail "the refusal does not say what to do: $(cat "$SCRATCH/dpkg")"
    unit_is node1 active || fail "a refused removal has stopped the agent"
    grep -q '^3 received' <<<"$(in_machine node1 ip netns exec pod python3 "$TOOLS/pings.py" "$(address_of pod1)" 3 0.02 3)" ||
        fail "the pod reaches no other after a refused removal"
    machine_pod_gone node1 pod
    dpkg_in_machine --purge tartan || fail "dpkg --purge: $(cat "$SCRATCH/dpkg")"
    # What the test itself has written there is gone too.
    same "files and network of the machine, before the installation and after" \
        "$(grep -v ' \./etc/tartan' <<<"$before")" "$(traces)"
    machine_down node1
}

# What README.Debian has the administrator install, and what a purge removes.
drop_ins() {
    local examples=/usr/share/doc/tartan/examples
    in_machine node1 install -D -m 644 "$examples/tartan-kernel-path.conf" /etc/systemd/system/tartan.service.d/kernel-path.conf
    in_machine node1 install -D -m 644 "$examples/tartan-networkd.conf" /etc/systemd/networkd.conf.d/tartan.conf
}

restarted() {
    local now
    now=$(unit_property node1 MainPID)
    [ "$now" != 0 ] && [ "$now" != "$1" ] && forwarding node1
}

# In podman, in a container whose file system cannot be written, with one capability; settings of the kernel by a mount.
image() {
    local version before archive=("$DIST"/*-image-*.tar)
    # shellcheck source=scripts/tests.d/tools/runtimes.sh
    . "$TOOLS/runtimes.sh"
    version=$(sed -nE 's/^version = "(.*)"/\1/p' "$HOME_OF_TEST/Cargo.toml" | head -n 1)
    lab_up --pods 0
    lab attach node2 >/dev/null
    lab stop node1 >/dev/null
    in_ns node1 tartan cleanup >/dev/null
    runtime_host_up node1
    podman_up node1
    podman node1 load --quiet --input "${archive[0]}" >/dev/null || die "podman does not load the image"
    equal "podman runs its program" "tartan $version" "$(podman node1 run --rm --network none --cgroup-parent "/$PREFIX-runtimes" "localhost/tartan:$version" --version)"
    before=$(machine_network node1)
    in_runtime_host node1 mkdir -p /etc/tartan /run/tartan /run/flannel /var/lib/tartan
    in_runtime_host node1 cp "$LAB_STATE/node1/net-conf.json" "$LAB_STATE/node1/nodes.toml" /etc/tartan/
    run_container "$version"
    equal "problems that it reports" '[]' "$(podman node1 exec tartan /usr/bin/tartan status -o json | jq -c '[.problems[].code]')"
    install_by_image "$version"
    # Its own pod, attached by the plugin that came with the image.
    in_ns node1 python3 "$TOOLS/pings.py" "$(address_of pod1)" 5 0.02 3 >"$SCRATCH/answers"
    equal "ping of the node to pod1" "5 received" "$(cat "$SCRATCH/answers")"
    container_is_replaced "$version"
    container_ends
    podman node1 run --rm --network none --cgroup-parent "/$PREFIX-runtimes" --cap-drop ALL "${PLUGIN_MOUNTS[@]}" -v /run/tartan:/run/tartan \
        "localhost/tartan:$version" cni uninstall >"$SCRATCH/uninstalled" 2>&1 || fail "cni uninstall in a container: $(cat "$SCRATCH/uninstalled")"
    equal "what is left of the plugin" '' "$(in_runtime_host node1 find /opt/cni/bin /etc/cni/net.d -name '*tartan*')"
    # The directories of the host's that are mounted stay, empty.
    local cleans=(run --network host --cgroup-parent "/$PREFIX-runtimes" --cap-drop ALL --cap-add NET_ADMIN -v /run/tartan:/run/tartan
        -v /run/flannel:/run/flannel -v /var/lib/tartan:/var/lib/tartan -v /proc/sys/net:/host/proc/sys/net)
    podman node1 "${cleans[@]}" --rm "localhost/tartan:$version" cleanup || fail "cleanup in a container ended with $?"
    # As the container of a DaemonSet, which must not end by itself.
    podman node1 "${cleans[@]}" -d --name tartan "localhost/tartan:$version" cleanup --stay >/dev/null
    until_true 10 "cleanup --stay has done its work" container_has_cleaned || true
    equal "whether it stays" true "$(podman node1 inspect tartan --format '{{.State.Running}}')"
    container_ends
    same "network of node1, before the image was run and after" "$before" "$(machine_network node1)"
    in_runtime_host node1 rmdir /run/tartan /run/flannel /var/lib/tartan || fail "a directory of Tartan's is not empty"
}

# run_container TAG [OPTION...]: as docs/install.md says, with these options in the place of the device, and waits until it forwards.
run_container() {
    local options=("${@:2}")
    [ ${#options[@]} -gt 0 ] || options=(--device /dev/net/tun)
    podman node1 run -d --name tartan --restart=always --network host --cgroup-parent "/$PREFIX-runtimes" --read-only \
        --cap-drop ALL --cap-add NET_ADMIN "${options[@]}" --security-opt no-new-privileges \
        -v /etc/tartan:/etc/tartan:ro -v /run/tartan:/run/tartan -v /run/flannel:/run/flannel -v /var/lib/tartan:/var/lib/tartan \
        -v /proc/sys/net:/host/proc/sys/net -e TARTAN_PROBE -e TARTAN_NODE_NAME=node1 \
        "localhost/tartan:$1" >/dev/null || die "podman does not run the image"
    until_true 15 "the container forwards" container_forwards || {
        podman node1 exec tartan /usr/bin/tartan status || true
        podman node1 logs tartan 2>&1 | tail -n 30
        die "the container does not forward"
    }
}

# By podman stop, after which the restart policy starts it no more.
container_ends() {
    podman node1 stop --time 15 tartan >/dev/null
    equal "how the container ended" 0 "$(podman node1 inspect tartan --format '{{.State.ExitCode}}')"
    podman node1 rm tartan >/dev/null
}

# container_is_replaced TAG: by one of another image, while a connection of the node to pod1 goes on.
container_is_replaced() {
    start_in pod1 python3 "$TOOLS/held.py" serve 9000 "$(address_of pod1)"
    until_true 10 "held.py serves" is_bound pod1 tcp 9000 || true
    hold "node1 to pod1" node1 "$(address_of pod1)" 9000
    podman node1 tag "localhost/tartan:$1" localhost/tartan:newer
    container_ends
    run_container newer
    all_go_on "after the container was replaced"
    container_ends
    run_container newer --cap-add MKNOD
    all_go_on "after a container that has no device took its place"
    grep -q 'made /dev/net/tun' <<<"$(podman node1 logs tartan 2>&1)" || fail "a container without the device has not made the file"
    container_ends
    without_device newer
    run_container newer
    all_go_on "after one that could not have it"
    load_survived
}

# without_device TAG: neither the device nor the means to make it: it ends, and says what to do.
without_device() {
    local code=0
    podman node1 run --name tartan --network host --cgroup-parent "/$PREFIX-runtimes" --read-only \
        --cap-drop ALL --cap-add NET_ADMIN --security-opt no-new-privileges \
        -v /etc/tartan:/etc/tartan:ro -v /run/tartan:/run/tartan -v /run/flannel:/run/flannel -v /var/lib/tartan:/var/lib/tartan \
        -v /proc/sys/net:/host/proc/sys/net -e TARTAN_PROBE -e TARTAN_NODE_NAME=node1 \
        "localhost/tartan:$1" >"$SCRATCH/without-device" 2>&1 || code=$?
    equal "exit code of a container without the device" 1 "$code"
    grep -q '/dev/net/tun cannot be opened' "$SCRATCH/without-device" || fail "it does not say what it lacks: $(cat "$SCRATCH/without-device")"
    podman node1 rm tartan >/dev/null
}

container_has_cleaned() {
    grep -q '/run/tartan: it is empty' <<<"$(podman node1 logs tartan 2>&1)"
}

container_forwards() {
    podman node1 exec tartan /usr/bin/tartan status -o json | jq -e .snapshot_adopted
}

# As the init container of deploy/kubernetes does: the plugin and its configuration are put where the host's runtime looks.
install_by_image() {
    in_runtime_host node1 rm -f /opt/cni/bin/tartan-cni /etc/cni/net.d/10-tartan.conflist
    podman node1 run --rm --network none --cgroup-parent "/$PREFIX-runtimes" --cap-drop ALL \
        "${PLUGIN_MOUNTS[@]}" "localhost/tartan:$1" cni install >"$SCRATCH/installed" 2>&1 || fail "cni install in a container: $(cat "$SCRATCH/installed")"
    in_runtime_host node1 test -x /opt/cni/bin/tartan-cni || fail "the plugin is not on the host"
    in_runtime_host node1 test -s /etc/cni/net.d/10-tartan.conflist || fail "the plugin's configuration is not on the host"
}

# platforms_of ARCHIVE: the machines for which an image is there, by the index that its own index names.
platforms_of() {
    local list
    list=$(tar --extract --to-stdout --file "$1" index.json | jq -r '.manifests[0].digest | sub(":"; "/")')
    tar --extract --to-stdout --file "$1" "blobs/$list" | jq -r '[.manifests[].platform.architecture] | sort | join(" ")'
}

# unfinished SCRIPT DIRECTORY: a release of programs that are not there.
unfinished() {
    if "$1" --binaries "$SCRATCH/nothing" --output "$2" >"$SCRATCH/unfinished" 2>&1; then fail "a release was made of no programs"; fi
    [ -d "$2" ] || fail "a release of no programs ended too early to show anything: $(cat "$SCRATCH/unfinished")"
    if (cd "$2" && sha256sum --check SHA256SUMS) >/dev/null 2>&1; then fail "SHA256SUMS of an unfinished release holds"; fi
}

# are_static PROGRAM...: they ask for no library and no loader.
are_static() {
    local program
    equal "programs that are looked at" 4 $#
    for program; do
        equal "what $program needs of the host" '' "$(readelf --program-headers --dynamic "$program" | grep -E 'INTERP|\(NEEDED\)')"
    done
}

# Twice, from two clones of the same commit in directories of different names, for both architectures. The second is asked for from
# its caller's directory.
release() {
    local copy tool target targets=()
    for tool in musl-gcc aarch64-linux-gnu-gcc qemu-aarch64-static lintian; do
        command -v "$tool" >/dev/null || die "there is no $tool: run scripts/install --full"
    done
    for target in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
        [ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || die "Rust has no library for $target: run scripts/install --full"
        targets+=(--target "$target")
    done
    for copy in one a-second-clone; do
        git clone --quiet --shared "$HOME_OF_TEST" "$SCRATCH/$copy"
        # One that ends on its way is in the way of no other, and is taken for none.
        unfinished "$SCRATCH/$copy/scripts/release" "$SCRATCH/$copy.dist"
        (cd "$SCRATCH" && env -u CARGO_TARGET_DIR "$copy/scripts/release" "${targets[@]}" --output "$copy.dist") >"$SCRATCH/$copy.log" 2>&1 ||
            die "scripts/release: $(tail -n 20 "$SCRATCH/$copy.log")"
    done
    same "the files of both builds" "$(cat "$SCRATCH/one.dist/SHA256SUMS")" "$(cat "$SCRATCH/a-second-clone.dist/SHA256SUMS")"
    (cd "$SCRATCH/one.dist" && du -h -- *)
    equal "what the arm64 program says of itself" "tartan $(sed -nE 's/^version = "(.*)"/\1/p' "$HOME_OF_TEST/Cargo.toml" | head -n 1)" \
        "$(qemu-aarch64-static "$SCRATCH/one/target/aarch64-unknown-linux-musl/release/tartan" --version)"
    are_static "$SCRATCH"/one/target/*-unknown-linux-musl/release/tartan "$SCRATCH"/one/target/*-unknown-linux-musl/release/tartan-cni
    equal "lintian of the arm64 package" '' "$(lintian --fail-on none --allow-root "$SCRATCH"/one.dist/*arm64.deb 2>&1 | grep -v '^N: ')"
    equal "machines of the image for all" 'amd64 arm64' "$(platforms_of "$SCRATCH"/one.dist/tartan-*-image.tar)"
    rm "$SCRATCH"/one.dist/*arm64* "$SCRATCH"/one.dist/tartan-*-image.tar
    if grep -qaF -e "$SCRATCH" -e "${CARGO_HOME:-$HOME/.cargo}" "$SCRATCH/one/target/x86_64-unknown-linux-musl/release/tartan"; then
        fail "the program holds paths of this machine"
    fi
    DIST=$SCRATCH/one.dist
    papers
    LAB_BIN=$SCRATCH/one/target/x86_64-unknown-linux-musl/release
    export LAB_BIN
    BIN=$LAB_BIN
    UNLIKE_RELEASE=
    deb
    lab down
    image
}

say "packages, $PART"
case $PART in
deb)
    make_release deb
    papers
    deb
    ;;
image)
    make_release image
    image
    ;;
release) release ;;
*) die "deb, image or release?" ;;
esac
