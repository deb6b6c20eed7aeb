# shellcheck shell=bash
# The static programs, and what they say of themselves. Sourced by scripts/release.

# need PROGRAM PACKAGE
need() {
    command -v "$1" >/dev/null || die "there is no $1: install it (in Debian the package $2)"
}

# build_programs TARGET: BUILT is the directory that holds them, ARCHITECTURE what Debian and OCI call their machine.
# Paths of this machine are in none of them, and neither is the compiler's table of symbols: it is as long as the program.
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
