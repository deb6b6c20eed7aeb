# shellcheck shell=bash
# For scripts/uninstall under test: bash reads this first (BASH_ENV). It counts the script's commands that change something, and
# kills the script before the one of number KILL_AT. With KILL_AT=0 it kills nothing, and writes a line for each to the file
# LIST: its number, the functions that called it, and the command.

STEP=0

before_command() {
    [[ $BASH_COMMAND =~ ^(rm|rmdir|networkctl|systemctl|\"\$BIN/tartan\")\  && $BASH_COMMAND != *is-active* ]] || return 0
    STEP=$((STEP + 1))
    if [ "$KILL_AT" = 0 ]; then
        echo "$STEP ${FUNCNAME[*]:1}: $BASH_COMMAND" >>"$LIST"
    elif [ "$STEP" = "$KILL_AT" ]; then
        kill -KILL $$
    fi
}

# Also in functions.
set -o functrace
trap before_command DEBUG
