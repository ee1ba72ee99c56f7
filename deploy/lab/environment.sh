# shellcheck shell=bash
# Sourced by deploy/lab/lab and tests/run: where their virtual environment lies, and which Python makes it.
#
# A lab of root's runs its jobs as nobody (account.py), who must read the packages wherever the checkout lies.

[ "$(id -u)" != 0 ] || umask 022 # what root makes here is for nobody to read, also where root's own files are not

environment_folder() { # CHECKOUT: $SENTINEL_VENV, or .venv in the checkout where we can write it and jobs can read it
    local nobody=()
    [ "$(id -u)" != 0 ] || nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    if [ -n "${SENTINEL_VENV:-}" ]; then
        (cd "$1" && realpath --canonicalize-missing --no-symlinks "$SENTINEL_VENV")
    elif [ -w "$1" ] && (cd / && "${nobody[@]}" test -r "$1" -a -x "$1"); then
        echo "$1/.venv"
    elif [ "$(id -u)" = 0 ]; then # in /root, or below a folder of mktemp's; only root can make anything in /var/cache
        echo "/var/cache/sentinel-checkouts/$(printf '%s' "$1" | sha256sum | cut -c 1-12)"
    else
        echo "${XDG_CACHE_HOME:-$HOME/.cache}/sentinel-lab"
    fi
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

fits_jobs() { # CHECKOUT PYTHON [PACKAGE...]: whether jobs can run it, or the system's own of its release, with those packages
    PYTHONPATH="$1/deploy" "$2" -c 'import sys; from lab.account import account
sys.exit(not account(sys.executable).finds(*sys.argv[1:]))' "${@:3}" 2>/dev/null
}

base_python() { # CHECKOUT: prints a Python >= 3.11 that can make virtual environments
    local name python
    for name in python3 python3.13 python3.12 python3.11 python3.14; do
        for python in "$(command -v "$name")" "/usr/bin/$name"; do # the first may lie in root's home
            if [ -x "$python" ] && new_enough "$python" && "$python" -c 'import ensurepip, venv' 2>/dev/null &&
                fits_jobs "$1" "$python"; then
                echo "$python"
                return
            fi
        done
    done
    return 1
}
