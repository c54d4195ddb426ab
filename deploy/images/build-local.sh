#!/usr/bin/env bash
# Build the trial image from this host's own Python and libraries, without pulling anything: for tests, and for hosts
# that reach no registry. Needs bash, python3.11, ldd, tar and a running Docker engine.
#
#   build-local.sh [-t TAG] [-p PYTHON] [-e VENV [-d]] [-o FILE.tar] [REQUIREMENT...]
#   build-local.sh -s -e VENV [-t TAG] [-o FILE.tar]
#
#   -t TAG     name of the image (undeterred/trial:dev, undeterred/server:dev)
#   -s         the image of a cluster's processes, with what VENV has: `pip install ./harness '.[server]'` before
#   -p PYTHON  the interpreter to copy (python3.11 on PATH, or the one VENV was made from)
#   -e VENV    take the installed packages of this virtual environment; without it the harness is installed by pip
#   -d         with the package `determined` that VENV has, such as Determined's own, instead of our harness
#   -o FILE    write the file system as a tar file instead of importing it into Docker
#   REQUIREMENT  further packages, installed by pip
set -euo pipefail

tag="" python="" venv="" output="" own="" server="" own_packages=()
while getopts "t:p:e:do:sh" option; do
    case $option in
        t) tag=$OPTARG ;;
        p) python=$OPTARG ;;
        e) venv=${OPTARG%/} ;;
        d) own=1 ;;
        o) output=$OPTARG ;;
        s) server=1 ;;
        *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; [ "$option" = h ] && exit 0 || exit 2 ;;
    esac
done
shift $((OPTIND - 1))
fail() { echo "build-local.sh: $*" >&2; exit 1; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$here/../..
harness=$repository/harness
kind=${server:+server}
tag=${tag:-undeterred/${kind:-trial}:dev}
[ -n "$python" ] || python=${venv:+$venv/bin/python}
[ -n "$python" ] || python=$(command -v python3.11) || fail "no python3.11 on PATH; install it, or name one with -p."
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || fail "$python is not Python 3.11; name another with -p."
[ -z "$server" ] || [ -x "$venv/bin/undeterred-api" ] || fail "-s: ${venv:-no VENV} has no undeterred-api; name an environment with undeterred[server] by -e."
[ -d "$harness/determined" ] || fail "no harness at $harness; run this script from a checkout."
[ -n "$output" ] || docker info >/dev/null 2>&1 || fail "no Docker engine answers; start it (dockerd), or write a file with -o."

# One line each: the real executable, the standard library, the virtual environment's packages.
mapfile -t found < <("$python" - <<'PY'
import os, sys, sysconfig
base = getattr(sys, "_base_executable", sys.executable)
print(os.path.realpath(base))
print(os.path.dirname(os.__file__))
print(sysconfig.get_path("purelib"))
PY
)
executable=${found[0]} stdlib=${found[1]} purelib=${found[2]}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
site=$root/usr/local/lib/python3.11/site-packages
mkdir -p "$root"/{etc,dev,proc,sys,root,home,var/tmp,usr/bin,usr/lib,usr/lib64,usr/sbin,usr/local/bin,run/determined/workdir} "$site"
mkdir -p "$root/tmp"
chmod 1777 "$root/tmp" "$root/var/tmp"
chmod 0700 "$root/root" "$root/run/determined" "$root/run/determined/workdir"
for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done

# Compiled files stay: without them each container would compile the standard library again.
tar -C "$stdlib" -cf - --exclude=./site-packages --exclude=./dist-packages --exclude=./test --exclude=./idlelib \
    --exclude=./tkinter --exclude=./turtledemo --exclude=./lib2to3 --exclude=./ensurepip --exclude='./config-3*' \
    --exclude='*.opt-?.pyc' --exclude=tests . | tar -C "$root/usr/local/lib/python3.11" -xf -
install -m 0755 "$executable" "$root/usr/local/bin/python3.11"
ln -s python3.11 "$root/usr/local/bin/python3"
ln -s python3.11 "$root/usr/local/bin/python"

[ -z "$own" ] || [ -d "$purelib/determined" ] || fail "-d: $purelib has no package determined; name a VENV with one by -e."

if [ -n "$venv" ]; then
    replaced=(--exclude=./determined)
    [ -z "$own" ] || replaced=()
    [ -n "$server" ] || replaced+=(--exclude='./undeterred*')
    tar -C "$purelib" -cf - --exclude='./__editable__*' --exclude=./pip --exclude='./pip-*' \
        --exclude=./setuptools --exclude='./setuptools-*' --exclude=./pkg_resources --exclude=./_distutils_hack \
        --exclude='./distutils-precedence.pth' "${replaced[@]}" --exclude=tests --exclude='*.pyi' --exclude='*.pxd' \
        . | tar -C "$site" -xf -
    if [ -n "$server" ]; then # as this checkout has it, and not as VENV had it once
        tar -C "$repository" -cf - --exclude=__pycache__ activities api cli database web workers workflows |
            tar -C "$site" -xf - --recursive-unlink
        for program in "$venv"/bin/undeterred-* "$venv"/bin/det; do
            sed '1s|.*|#!/usr/local/bin/python3|' "$program" >"$root/usr/local/bin/${program##*/}"
        done
        chmod 0755 "$root"/usr/local/bin/*
        own_packages=(activities api cli database web workers workflows)
    fi
    [ -n "$own" ] || tar -C "$harness" -cf - --exclude=__pycache__ determined | tar -C "$site" -xf -
    [ $# -eq 0 ] || "$python" -m pip install --quiet --disable-pip-version-check --target "$site" "$@"
else
    "$python" -m pip install --quiet --disable-pip-version-check --target "$site" "$harness" "$@"
fi
for package in determined "${own_packages[@]}"; do
    "$python" -m compileall -q "$site/$package" -s "$root" >/dev/null || true
done

# A shell and the small tools that entrypoints and start-up hooks use.
tools="sh bash env cat ls ln cp mv rm mkdir rmdir chmod chown touch sleep echo true false head tail grep sed tr cut sort
uniq wc tee find xargs date id hostname uname ps kill tar gzip getent dirname basename readlink realpath mktemp pwd test
printf nproc df du seq timeout stat md5sum sha256sum nohup whoami expr which awk setsid sshd ssh ssh-keygen scp"
binaries=("$root/usr/local/bin/python3.11")
for tool in $tools; do
    path=$(PATH=$PATH:/usr/sbin type -P "$tool") || continue
    cp -L "$path" "$root/usr/bin/$tool"
    binaries+=("$path")
done
# What the SSH server of a shell starts, if this host has one.
for path in /usr/lib/openssh/{sftp-server,sshd-session,sshd-auth} /usr/libexec/openssh/{sftp-server,sshd-session,sshd-auth}; do
    [ -e "$path" ] || continue
    install -D -m 0755 "$path" "$root$path"
    binaries+=("$path")
done

# Every shared library that any of it loads, to its own path where that is a usual one, else to /usr/local/lib.
mapfile -t objects < <(find "$root/usr/local/lib" -name '*.so*' -type f)
{ ldd "${binaries[@]}" "${objects[@]}" 2>/dev/null || true; } |
    sed -n -e 's/.*=> \(\/[^ ]*\) (.*/\1/p' -e 's/^[[:space:]]*\(\/[^ ]*ld-[^ ]*\) (.*/\1/p' | sort -u |
    while read -r library; do
        case $library in
            "$root"/*) continue ;;
            /lib/* | /lib64/* | /usr/lib/* | /usr/lib64/*) target=$root$library ;;
            *) target=$root/usr/local/lib/${library##*/} ;;
        esac
        mkdir -p "${target%/*}"
        cp -L "$library" "$target"
    done
# What wheels for Linux take for granted, also those that are added later.
for pattern in '/lib/*/libnss_files.so.2' '/lib/*/libnss_dns.so.2' '/lib/*/libresolv.so.2' '/lib/*/libgcc_s.so.1' \
    '/lib/*/libstdc++.so.6' '/lib/*/libm.so.6' '/lib/*/libdl.so.2' '/lib/*/librt.so.1' '/lib/*/libpthread.so.0' \
    '/lib/*/libutil.so.1'; do
    for library in $pattern; do
        [ ! -e "$library" ] || cp -L "$library" "$root$library"
    done
done
[ ! -d /usr/lib/locale/C.utf8 ] || { mkdir -p "$root/usr/lib/locale" && cp -r /usr/lib/locale/C.utf8 "$root/usr/lib/locale/"; }
[ ! -f /etc/ssl/certs/ca-certificates.crt ] ||
    install -D -m 0644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

printf 'root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n' >"$root/etc/passwd"
printf 'sshd:x:100:65534::/run/sshd:/bin/false\n' >>"$root/etc/passwd"
printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
printf '/usr/local/lib\n/lib/%s\n/usr/lib/%s\n/usr/lib64\n' "$(uname -m)-linux-gnu" "$(uname -m)-linux-gnu" >"$root/etc/ld.so.conf"
"$(type -P ldconfig || echo /sbin/ldconfig)" -r "$root" 2>/dev/null

if [ -n "$output" ]; then
    tar -C "$root" --numeric-owner --owner=0 --group=0 -cf "$output" .
    echo "$output"
    exit
fi
[ -z "$server" ] && starts=(--change 'CMD ["python3"]') || starts=(--change 'USER 10001' --change 'CMD ["undeterred-api"]')
tar -C "$root" --numeric-owner --owner=0 --group=0 -cf - . | docker import "${starts[@]}" \
    --change 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin' \
    --change 'ENV LANG=C.UTF-8' --change 'ENV DET_SKIP_PIP_INSTALL=1' \
    --change 'WORKDIR /run/determined/workdir' - "$tag" >/dev/null
echo "$tag: $(docker image inspect -f '{{.Size}}' "$tag" | awk '{printf "%.0f MB", $1 / 1e6}')"
