# shellcheck shell=bash
# The trees of files that the archive, the Debian package and the image are made of. Sourced by scripts/release.

# put MODE FILE TARGET
put() {
    install -D -m "$1" "$2" "$3"
}

# archive_tree PROGRAMS DIRECTORY: what docs/install.md installs by hand.
archive_tree() {
    local name
    for name in tartan tartan-cni; do put 755 "$1/$name" "$2/$name"; done
    put 755 scripts/uninstall "$2/uninstall"
    # All pages: they lead to each other.
    cp -r deploy "$2/deploy"
    for name in LICENSE CHANGELOG.md SECURITY.md docs/*.md; do put 644 "$name" "$2/$name"; done
    put 644 "$LICENCES" "$2/LICENCES-of-crates.txt"
    cp -r "$WORK/manuals" "$2/share"
}

# image_tree PROGRAMS DIRECTORY: nothing but the programs and what their licences ask for. LIBRARIES names files that a
# program is to find at their own place, where it is not static (the tests' programs are not).
image_tree() {
    local name
    for name in tartan tartan-cni; do put 755 "$1/$name" "$2/usr/bin/$name"; done
    put 644 LICENSE "$2/usr/share/doc/tartan/LICENSE"
    put 644 "$LICENCES" "$2/usr/share/doc/tartan/LICENCES-of-crates.txt"
    for name in ${LIBRARIES:-}; do put 755 "$name" "$2$name"; done
    # Empty, for what the agent writes and what a pod mounts there.
    mkdir -p "$2/etc/tartan" "$2/run/tartan" "$2/run/flannel" "$2/var/lib/tartan" "$2/tmp"
}

# debian_package ARCHITECTURE PROGRAMS DIRECTORY
debian_package() {
    local arch=$1 root=$3 doc=$3/usr/share/doc/tartan page script
    put 755 "$2/tartan" "$root/usr/bin/tartan"
    put 755 "$2/tartan-cni" "$root/usr/bin/tartan-cni"
    mkdir -p "$root/lib/systemd/system"
    sed 's,/usr/local/bin/,/usr/bin/,; /^Description=/a Documentation=man:tartan(1) man:tartan-run(1)' deploy/tartan.service \
        >"$root/lib/systemd/system/tartan.service"
    put 644 deploy/network/10-tartan.network "$root/usr/lib/systemd/network/10-tartan.network"
    put 644 deploy/network/tartan-networkmanager.conf "$root/usr/lib/NetworkManager/conf.d/10-tartan.conf"
    put 644 deploy/network/tartan-networkd.conf "$doc/examples/tartan-networkd.conf"
    put 644 deploy/tartan-kernel-path.conf "$doc/examples/tartan-kernel-path.conf"
    put 644 scripts/release.d/debian/README.Debian "$doc/README.Debian"
    put 644 CHANGELOG.md "$doc/NEWS"
    put 644 scripts/release.d/debian/copyright "$doc/copyright"
    put 644 "$LICENCES" "$doc/LICENCES-of-crates.txt"
    debian_changelog >"$doc/changelog"
    for page in "$WORK"/manuals/man/man1/*.1; do put 644 "$page" "$root/usr/share/man/man1/$(basename "$page")"; done
    put 644 "$WORK/manuals/bash-completion/completions/tartan" "$root/usr/share/bash-completion/completions/tartan"
    put 644 "$WORK/manuals/zsh/site-functions/_tartan" "$root/usr/share/zsh/vendor-completions/_tartan"
    put 644 "$WORK/manuals/fish/vendor_completions.d/tartan.fish" "$root/usr/share/fish/vendor_completions.d/tartan.fish"
    put 644 scripts/release.d/debian/lintian-overrides "$root/usr/share/lintian/overrides/tartan"
    find "$root/usr/share/man" "$doc/changelog" "$doc/NEWS" "$doc/LICENCES-of-crates.txt" -type f -exec gzip -9n {} +
    mkdir -p "$root/DEBIAN"
    for script in postinst prerm postrm; do put 755 "scripts/release.d/debian/$script" "$root/DEBIAN/$script"; done
    debian_control "$arch" "$(installed_size "$root")" >"$root/DEBIAN/control"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | sort | xargs md5sum) >"$root/DEBIAN/md5sums"
    find "$root" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
    # One thread: how blocks are cut must not depend on the machine.
    dpkg-deb --root-owner-group --threads-max=1 -Zxz --build "$root" "$OUTPUT/tartan_${VERSION}_$arch.deb" >/dev/null
}

# installed_size DIRECTORY: KiB, as dpkg-gencontrol(1) counts them: each file rounded up, and one for anything else. What du(1)
# says depends on the file system and on what it has written so far.
installed_size() {
    find "$1" -path "$1/DEBIAN" -prune -o -printf '%y %s\n' |
        awk '{ sum += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print sum }'
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

debian_changelog() {
    cat <<TEXT
tartan ($VERSION) unstable; urgency=medium

  * Release $VERSION. What has changed is in NEWS.gz.

 -- Tartan developers <tartan@packages.invalid>  $(date --utc --date "@$SOURCE_DATE_EPOCH" -R)
TEXT
}
