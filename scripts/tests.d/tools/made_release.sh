# shellcheck shell=bash
# Packages and images of the tests' programs, made by scripts/release. Sourced after test_case.sh.

BIN=$(readlink -f "${LAB_BIN:-$SCRIPTS/../target/fast}")
DIST=$SCRATCH/dist

# The tests' programs are not static: the image gets the libraries that they ask for.
libraries() {
    { ldd "$BIN/tartan"; ldd "$BIN/tartan-cni"; } 2>/dev/null |
        awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }' | sort -u | paste -sd ' '
}

# make_release FORM: deb or image, into $DIST.
make_release() {
    LIBRARIES=$(libraries) "$SCRIPTS/release" --binaries "$BIN" --only "$1" --output "$DIST" >"$SCRATCH/made" 2>&1 ||
        die "scripts/release: $(tail -n 20 "$SCRATCH/made")"
    say "made: $(cd "$DIST" && echo *)"
    (cd "$DIST" && sha256sum --quiet --check SHA256SUMS) || fail "SHA256SUMS does not hold"
}
