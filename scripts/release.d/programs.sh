# shellcheck shell=bash
# The static programs, and what they say of themselves. Sourced by scripts/release.

# architecture_of TARGET: as Debian and OCI name it.
architecture_of() {
    case $1 in
    x86_64-*) echo amd64 ;;
    aarch64-*) echo arm64 ;;
    esac
}

# need PROGRAM PACKAGE
need() {
    command -v "$1" >/dev/null || die "there is no $1: install it (in Debian the package $2)"
}

# build_programs TARGET: BUILT is the directory that holds them. Paths of this machine are in none of them, and neither is the
# compiler's table of symbols: it is as long as the program.
build_programs() {
    local target=$1 home cargo_home variable maps headers='' sysroot remaps program
    home=$PWD
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    sysroot=$(rustc --print sysroot)
    variable=${target//-/_}
    case $target in
    x86_64-unknown-linux-musl)
        need musl-gcc musl-tools
        export "CC_$variable=musl-gcc"
        # The kernel's headers, behind those of musl.
        headers="-idirafter /usr/include -idirafter /usr/include/$(cc -print-multiarch)"
        ;;
    aarch64-unknown-linux-musl)
        need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
        export "CC_$variable=aarch64-linux-gnu-gcc" "CARGO_TARGET_$(tr '[:lower:]' '[:upper:]' <<<"$variable")_LINKER=aarch64-linux-gnu-gcc"
        ;;
    *) die "$target is not known: x86_64-unknown-linux-musl or aarch64-unknown-linux-musl" ;;
    esac
    need protoc protobuf-compiler
    [ -e /usr/include/linux/if_tun.h ] || die "the kernel's headers are missing: install them (in Debian the package linux-libc-dev)"
    [ -d "$sysroot/lib/rustlib/$target" ] || die "Rust has no library for $target: run 'rustup target add $target'"
    maps="-ffile-prefix-map=$home=/tartan -ffile-prefix-map=$cargo_home=/cargo"
    # The standard library's sources, where the toolchain has them, are as where it has not.
    remaps="--remap-path-prefix=$home=/tartan --remap-path-prefix=$cargo_home=/cargo"
    remaps+=" --remap-path-prefix=$sysroot/lib/rustlib/src/rust=/rustc/$(rustc --version --verbose | sed -n 's/^commit-hash: //p')"
    env "CFLAGS_$variable=-g0 $maps $headers" RUSTFLAGS="$remaps" \
        CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_RELEASE_STRIP=symbols \
        CARGO_PROFILE_FAST_STRIP=symbols CARGO_PROFILE_FAST_INCREMENTAL=false CARGO_INCREMENTAL=0 \
        cargo build --target-dir target --profile "$PROFILE" --target "$target" --locked --quiet \
        -p tartan --bin tartan -p cni-shim --bin tartan-cni
    BUILT=$home/target/$target/$PROFILE
    for program in tartan tartan-cni; do
        is_static "$BUILT/$program"
        is_for "$target" "$BUILT/$program"
    done
    holds_bpf_object "$BUILT/tartan"
    has_no_hooks "$BUILT/tartan" "$BUILT/tartan-cni"
}

# has_no_hooks PROGRAM...: of tests (the cargo feature `faults`).
has_no_hooks() {
    ! grep -lE 'TARTAN_FAULTS: |TARTAN_CNI_FAULT' "$@" || die "a program has the hooks of tests"
}

# is_for TARGET PROGRAM: its machine is the target's.
is_for() {
    local machine
    case $1 in
    x86_64-*) machine='Advanced Micro Devices X86-64' ;;
    aarch64-*) machine=AArch64 ;;
    esac
    grep -q "^ *Machine: *$machine\$" <<<"$(readelf --file-header --wide "$2")" || die "$2 is not for ${1%%-*}"
}

# holds_bpf_object PROGRAM: the programs of the kernel path, which are for any machine of this byte order, as they are checked in.
holds_bpf_object() {
    python3 - "$1" dataplane/bpf/kernel_path.o <<'PYTHON' || die "$1 does not hold dataplane/bpf/kernel_path.o"
import pathlib, sys
program, object = (pathlib.Path(path).read_bytes() for path in sys.argv[1:])
sys.exit(object not in program)
PYTHON
}

# is_static PROGRAM: it asks for no loader.
is_static() {
    ! grep -q ' INTERP ' <<<"$(readelf --program-headers --wide "$1")" || die "$1 is not linked statically"
}

# make_manuals PROGRAM: man pages and completions, as the program writes them. One of another architecture is emulated.
make_manuals() {
    [ ! -d "$WORK/manuals" ] || return 0
    mkdir "$WORK/manuals"
    if "$1" manual --dir "$WORK/manuals" >/dev/null 2>&1; then return 0; fi
    need qemu-aarch64-static qemu-user-static
    qemu-aarch64-static "$1" manual --dir "$WORK/manuals" >/dev/null || die "$1 does not write its man pages: it is no 'tartan', or not for this machine"
}
