# shellcheck shell=bash
# The static programs, what they say of themselves, and the trees of files that the archive, the Debian package and the
# image are made of. Sourced by scripts/release.

# need PROGRAM PACKAGE
need() {
    command -v "$1" >/dev/null || die "there is no $1: install it (in Debian the package $2)"
}

# build_programs TARGET: BUILT is the directory that holds them, ARCHITECTURE what Debian and OCI call their machine.
# Paths of this machine are in none of them, nor the compiler's table of symbols: it is as long as the program.
build_programs() {
    local target=$1 variable=${1//-/_} cargo_home=${CARGO_HOME:-$HOME/.cargo} sysroot machine maps headers='' remaps
    sysroot=$(rustc --print sysroot)
    case $target in
    x86_64-unknown-linux-musl)
        ARCHITECTURE=amd64
        machine='Advanced Micro Devices X86-64'
        need musl-gcc musl-tools
        export "CC_$variable=musl-gcc"
        # The kernel's headers, behind those of musl.
        headers="-idirafter /usr/include -idirafter /usr/include/$(cc -print-multiarch)"
        ;;
    aarch64-unknown-linux-musl)
        # shellcheck disable=SC2034 # scripts/release uses it.
        ARCHITECTURE=arm64
        machine=AArch64
        need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
        export "CC_$variable=aarch64-linux-gnu-gcc" "CARGO_TARGET_${variable^^}_LINKER=aarch64-linux-gnu-gcc"
        ;;
    *) die "$target is not known: x86_64-unknown-linux-musl or aarch64-unknown-linux-musl" ;;
    esac
    need protoc protobuf-compiler
    [ -e /usr/include/linux/if_tun.h ] ||
        die "the kernel's headers are missing: install them (in Debian the package linux-libc-dev)"
    [ -d "$sysroot/lib/rustlib/$target" ] || die "Rust has no library for $target: run 'rustup target add $target'"
    maps="-ffile-prefix-map=$PWD=/tartan -ffile-prefix-map=$cargo_home=/cargo"
    # The standard library's sources, where the toolchain has them, are as where it has not.
    remaps="--remap-path-prefix=$PWD=/tartan --remap-path-prefix=$cargo_home=/cargo"
    remaps+=" --remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rustc/"
    remaps+=$(rustc --version --verbose | sed -n 's/^commit-hash: //p')
    env "CFLAGS_$variable=-g0 $maps $headers" RUSTFLAGS="$remaps" \
        CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols \
        CARGO_PROFILE_FAST_STRIP=symbols CARGO_PROFILE_FAST_INCREMENTAL=false CARGO_INCREMENTAL=0 \
        cargo build --target-dir target --profile "$PROFILE" --target "$target" --locked --quiet \
        -p tartan --bin tartan -p cni-shim --bin tartan-cni
    BUILT=$PWD/target/$target/$PROFILE
    is_whole "$BUILT/tartan" "$machine"
    is_whole "$BUILT/tartan-cni" "$machine"
    # The programs of the kernel path, which are for any machine of this byte order, as they are checked in.
    python3 -c 'import pathlib, sys
program, part = (pathlib.Path(path).read_bytes() for path in sys.argv[1:])
sys.exit(part not in program)' "$BUILT/tartan" dataplane/bpf/kernel_path.o ||
        die "$BUILT/tartan does not hold dataplane/bpf/kernel_path.o"
}

# is_whole PROGRAM MACHINE: it is for that machine, asks for no loader, and has no hooks of tests (the cargo feature
# `faults`).
is_whole() {
    grep -q "^ *Machine: *$2\$" <<<"$(readelf --file-header --wide "$1")" || die "$1 is not for $ARCHITECTURE"
    ! grep -q ' INTERP ' <<<"$(readelf --program-headers --wide "$1")" || die "$1 is not linked statically"
    ! grep -lE 'TARTAN_FAULTS: |TARTAN_CNI_FAULT' "$1" || die "a program has the hooks of tests"
}

# make_manuals PROGRAM: man pages and completions, as the program writes them. One of another architecture is emulated.
make_manuals() {
    [ ! -d "$WORK/manuals" ] || return 0
    mkdir "$WORK/manuals"
    if "$1" manual --dir "$WORK/manuals" >/dev/null 2>&1; then return 0; fi
    need qemu-aarch64-static qemu-user-static
    qemu-aarch64-static "$1" manual --dir "$WORK/manuals" >/dev/null ||
        die "$1 does not write its man pages: it is no 'tartan', or not for this machine"
}

# archive_tree PROGRAMS DIRECTORY: what docs/install.md installs by hand.
archive_tree() {
    local page
    install -D -m 755 -t "$2" "$1/tartan" "$1/tartan-cni" scripts/uninstall
    # All pages: they lead to each other.
    cp -r deploy "$2/deploy"
    for page in LICENSE CHANGELOG.md SECURITY.md docs/*.md; do install -D -m 644 "$page" "$2/$page"; done
    install -D -m 644 "$LICENCES" "$2/LICENCES-of-crates.txt"
    cp -r "$WORK/manuals" "$2/share"
}

# image_tree PROGRAMS DIRECTORY: nothing but the programs and what their licences ask for. LIBRARIES names files that a
# program is to find at their own place, where it is not static (the tests' programs are not).
image_tree() {
    local name
    install -D -m 755 -t "$2/usr/bin" "$1/tartan" "$1/tartan-cni"
    install -D -m 644 LICENSE "$2/usr/share/doc/tartan/LICENSE"
    install -D -m 644 "$LICENCES" "$2/usr/share/doc/tartan/LICENCES-of-crates.txt"
    for name in ${LIBRARIES:-}; do install -D -m 755 "$name" "$2$name"; done
    # Empty, for what the agent writes and what a pod mounts there.
    mkdir -p "$2/etc/tartan" "$2/run/tartan" "$2/run/flannel" "$2/var/lib/tartan" "$2/tmp"
}

# debian_package ARCHITECTURE PROGRAMS DIRECTORY
debian_package() {
    local size arch=$1 root=$3 share=$3/usr/share doc=$3/usr/share/doc/tartan debian=scripts/release.d/debian
    install -D -m 755 -t "$root/usr/bin" "$2/tartan" "$2/tartan-cni"
    mkdir -p "$root/lib/systemd/system"
    sed 's,/usr/local/bin/,/usr/bin/,; /^Description=/a Documentation=man:tartan(1) man:tartan-run(1)' \
        deploy/tartan.service >"$root/lib/systemd/system/tartan.service"
    install -D -m 644 -t "$root/usr/lib/systemd/network" deploy/network/10-tartan.network
    install -D -m 644 deploy/network/tartan-networkmanager.conf "$root/usr/lib/NetworkManager/conf.d/10-tartan.conf"
    install -D -m 644 -t "$doc/examples" deploy/network/tartan-networkd.conf deploy/tartan-kernel-path.conf
    install -D -m 644 -t "$doc" "$debian/README.Debian" "$debian/copyright"
    install -D -m 644 CHANGELOG.md "$doc/NEWS"
    install -D -m 644 "$LICENCES" "$doc/LICENCES-of-crates.txt"
    cat >"$doc/changelog" <<TEXT
tartan ($VERSION) unstable; urgency=medium

  * Release $VERSION. What has changed is in NEWS.gz.

 -- Tartan developers <tartan@packages.invalid>  $(date --utc --date "@$SOURCE_DATE_EPOCH" -R)
TEXT
    install -D -m 644 -t "$share/man/man1" "$WORK"/manuals/man/man1/*.1
    install -D -m 644 -t "$share/bash-completion/completions" "$WORK/manuals/bash-completion/completions/tartan"
    install -D -m 644 -t "$share/zsh/vendor-completions" "$WORK/manuals/zsh/site-functions/_tartan"
    install -D -m 644 -t "$share/fish/vendor_completions.d" "$WORK/manuals/fish/vendor_completions.d/tartan.fish"
    install -D -m 644 "$debian/lintian-overrides" "$share/lintian/overrides/tartan"
    find "$share/man" "$doc/changelog" "$doc/NEWS" "$doc/LICENCES-of-crates.txt" -type f -exec gzip -9n {} +
    install -D -m 755 -t "$root/DEBIAN" "$debian"/{postinst,prerm,postrm}
    # KiB, as dpkg-gencontrol(1) counts them: each file rounded up, and one for anything else. What du(1) says depends
    # on the file system and on what it has written so far.
    size=$(find "$root" -path "$root/DEBIAN" -prune -o -printf '%y %s\n' |
        awk '{ sum += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print sum }')
    debian_control "$arch" "$size" >"$root/DEBIAN/control"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs md5sum) >"$root/DEBIAN/md5sums"
    find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
    # One thread: how blocks are cut must not depend on the machine.
    dpkg-deb --root-owner-group --threads-max=1 -Zxz --build "$root" "$OUTPUT/tartan_${VERSION}_$arch.deb" >/dev/null
}

debian_control() {
    cat <<TEXT
Package: tartan
Version: $VERSION
Architecture: $1
Maintainer: Tartan developers <tartan@packages.invalid>
Installed-Size: $2
Section: net
Priority: optional
Recommends: nftables
Suggests: containernetworking-plugins
Description: pod network dataplane for Kubernetes, in user space
 Tartan connects the pods of a Kubernetes cluster across nodes. It does the
 work of flannel's vxlan and udp backends in a user process: it reads packets
 from a TUN device, encapsulates them, and sends them to the other nodes over
 plain UDP sockets. Its packets are flannel's, bit for bit, so that a Tartan
 node and a flannel node can exchange pod traffic.
 .
 This package holds the service and command line, tartan, and the CNI plugin,
 tartan-cni. Both are linked statically.
TEXT
}
