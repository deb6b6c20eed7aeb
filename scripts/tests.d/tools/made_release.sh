# shellcheck shell=bash
# Packages and images of the tests' programs, made by scripts/release. Sourced after test_case.sh.

DIST=$SCRATCH/dist

# make_release FORM: deb or image, into $DIST, of programs without their symbols, as those of a release are. They are
# not static: the image gets the libraries that they ask for.
make_release() {
    install -D --strip -t "$SCRATCH/programs" "$BIN/tartan" "$BIN/tartan-cni"
    LIBRARIES=$(ldd "$BIN/tartan" | grep -o '/[^ ]*' | paste -sd ' ') DPKG_DEB_COMPRESSOR_LEVEL=1 GZIP_LEVEL=1 \
        "$SCRIPTS/release" --binaries "$SCRATCH/programs" --only "$1" --output "$DIST" >"$SCRATCH/made" 2>&1 ||
        die "scripts/release: $(tail -n 20 "$SCRATCH/made")"
    (cd "$DIST" && sha256sum --quiet --check SHA256SUMS) || fail "SHA256SUMS does not hold"
}
