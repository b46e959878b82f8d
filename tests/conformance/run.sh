#!/usr/bin/env bash
# Runs Kubernetes' own end-to-end specs against a cluster of `drainwatch cluster up`.
# See README.md beside this file, or --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kubernetes=1.34.0
modes=()
only=()
procs=4
output=
tools=

usage() {
    cat <<'END'
usage: run.sh [OPTIONS] [GROUP...]

Runs the groups of specs that are listed in the file `groups` (all of them where none is named).

  --proxy-mode MODE     iptables or nftables; may be given twice (both)
  --procs N             specs at a time (4)
  --kubernetes VERSION  of the cluster and of the specs (1.34.0)
  --output FOLDER       JUnit reports and logs (conformance-<UTC time> below the current folder)
  --tools FOLDER        where the specs' programs and images are kept or made
                        (drainwatch/conformance-<VERSION> below ~/.cache)
  --list                names the groups and the specs of each; needs no cluster

DRAINWATCH names the drainwatch binary (target/release/drainwatch of this repository).
Exit code: 0 all passed, 1 a spec failed or a group ran fewer than it should, 2 wrong usage,
else what `drainwatch cluster up` gave.
END
}

list=false
while [ $# -gt 0 ]; do
    case $1 in
        --proxy-mode) modes+=("${2:?}"); shift 2 ;;
        --procs) procs=${2:?}; shift 2 ;;
        --kubernetes) kubernetes=${2:?}; shift 2 ;;
        --output) output=${2:?}; shift 2 ;;
        --tools) tools=${2:?}; shift 2 ;;
        --list) list=true; shift ;;
        --help | -h) usage; exit 0 ;;
        -*) usage >&2; exit 2 ;;
        *) only+=("$1"); shift ;;
    esac
done
[ ${#modes[@]} -gt 0 ] || modes=(iptables nftables)
for mode in "${modes[@]}"; do
    [[ $mode == iptables || $mode == nftables ]] || { echo "no such proxy mode: $mode" >&2; exit 2; }
done
for name in "${only[@]}"; do
    grep -q "^group $name " "$here/groups" || { echo "no such group: $name (see $here/groups)" >&2; exit 2; }
done
tools=${tools:-${XDG_CACHE_HOME:-$HOME/.cache}/drainwatch/conformance-$kubernetes}

command -v setpriv >/dev/null || { echo "missing on this machine: setpriv (of util-linux)" >&2; exit 1; }
"$here/build.sh" "$tools" "$kubernetes" >&2
if $list; then
    exec "$here/specs.sh" "$tools" - "${modes[0]}" list "${only[@]}"
fi
if [ -z "${DRAINWATCH:-}" ]; then
    (cd "$here/../.." && cargo build --release --locked)
    DRAINWATCH=$here/../../target/release/drainwatch
fi
DRAINWATCH=$(realpath "$DRAINWATCH")
output=${output:-conformance-$(date -u +%Y%m%dT%H%M%SZ)}
mkdir -p "$output"
output=$(realpath "$output")
export DRAINWATCH

status=0
for mode in "${modes[@]}"; do
    # The shell is the cluster's command: when it ends, the cluster goes; and that ends with this
    # script. One node is the control plane; one spec wants three that take pods.
    setpriv --pdeathsig TERM \
        "$DRAINWATCH" cluster up --setup --kubernetes "$kubernetes" --nodes 4 --dns --proxy-mode "$mode" -- \
        bash -c '"$DRAINWATCH" cluster load "$1" >/dev/null && exec "$0" "${@:2}"' \
        "$here/specs.sh" "$tools/images.tar" "$tools" "$output" "$mode" "$procs" "${only[@]}" || {
        code=$?
        # A failed spec is no reason not to ask the other mode; a cluster that can't be had is.
        [ $code -eq 1 ] || exit $code
        status=1
    }
done
echo "reports: $output"
exit $status
