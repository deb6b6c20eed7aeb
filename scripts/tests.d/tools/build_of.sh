#!/usr/bin/env bash
# Prints the path of an earlier `tartan`: the program that is named, or that of another commit of this repository, which is built
# in the profile of the tests. What is built is kept, below target/commits, for the next time.
#
# build_of.sh PROGRAM|COMMIT: `previous` is the last tag before this commit; as long as no release is tagged, the first commit
# whose agent can be upgraded.
set -euo pipefail
if [ -f "$1" ]; then exec readlink -f "$1"; fi
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../../.."

# The first commit with `tartan upgrade`.
FIRST_TO_BE_UPGRADED=636872ad92027c25424e03aea593e1c9a24bc7dc

die() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

name=$1
if [ "$name" = previous ]; then
    name=$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null) || name=$FIRST_TO_BE_UPGRADED
fi
commit=$(git rev-parse --verify --quiet "$name^{commit}") ||
    die "this clone has no commit $name: fetch the whole history (git fetch --unshallow --tags), or name another"
clone=target/commits/$commit
if [ ! -e "$clone/built" ]; then
    rm -rf "$clone"
    git clone --quiet --shared --no-checkout . "$clone"
    git -C "$clone" checkout --quiet --detach "$commit"
    env -u CARGO_TARGET_DIR "$clone/scripts/build" >&2 || die "commit $name does not build"
    touch "$clone/built"
fi
echo "$PWD/$clone/target/fast/tartan"
