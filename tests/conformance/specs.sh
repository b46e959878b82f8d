#!/usr/bin/env bash
# Runs groups of Kubernetes' own specs against the cluster that KUBECONFIG names, and tells what
# came of each. run.sh calls it with a cluster of drainwatch's; any other does as well, where the
# images of build.sh's archive are loaded on its nodes.
#
#   specs.sh TOOLS OUTPUT MODE PROCS [GROUP...]
#
# TOOLS is build.sh's folder; MODE says how kube-proxy works there (`iptables`). JUnit reports and
# logs go to OUTPUT/MODE. PROCS of `list` only names the specs of each group.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=${1:?} output=${2:?} mode=${3:?} procs=${4:?}
shift 4
only=("$@")

# They end with this script, and it with the cluster.
run=(setpriv --pdeathsig TERM "$tools/ginkgo" run --procs="$procs" --timeout=3h)
if [ "$procs" = list ]; then
    output=$(mktemp -d)
    trap 'rm -rf "$output"' EXIT
    run=("$tools/ginkgo" run --dry-run)
fi
into=$output/$mode
mkdir -p "$into"

# How a spec's failure is called in a report.
failures='failed|panicked|timedout|interrupted|aborted'

# All specs of a JUnit report but those that were never selected.
only_selected() {
    awk '/<testcase /{held = ""; holding = 1}
        holding {held = held $0 "\n"; if (/<\/testcase>/) {
            if (held !~ /<skipped message="skipped">/) printf "%s", held; holding = 0}; next}
        {print}' "$1"
}

# STATUS FILE: how many specs have it. Set-ups count where they fail only.
count() { grep -cE "<testcase name=\"\[It\][^>]* status=\"($1)\"" "$2"; }

names() {
    sed -nE "s/.*<testcase name=\"([^\"]*)\"[^>]* status=\"($1)\".*/\1/p" "$2" |
        sed "s/&#39;/'/g; s/&#34;/\"/g; s/&gt;/>/g; s/&lt;/</g; s/&amp;/\&/g"
}

status=0
# Some specs skip themselves unless they are told how many nodes take pods.
nodes=0
[ "$procs" = list ] || nodes=$("$tools/kubectl" get nodes \
    -o go-template='{{range .items}}{{if not .spec.taints}}x{{end}}{{end}}' | wc -c)

# NAME SPECS FOCUS [SKIP]: as `groups` describes it.
group() {
    local name=$1 specs=$2 focus=$3 skip=${4:-} start=$SECONDS code report passed skipped failed
    [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $name "* ]] || return 0
    "${run[@]}" --no-color --label-filter="$everywhere" --focus="$focus" ${skip:+--skip="$skip"} \
        "$tools/e2e.test" -- \
        --kubeconfig="${KUBECONFIG:-}" --kubectl-path="$tools/kubectl" --provider=skeleton \
        --num-nodes="$nodes" --system-pods-startup-timeout=1m --report-dir="$into" --report-prefix="${name}_" \
        > "$into/$name.log" 2>&1 < /dev/null
    code=$?
    report=$into/$name.xml
    if ! only_selected "$into/junit_${name}_01.xml" > "$report" 2>/dev/null; then
        printf '%-14s %-9s did not run: see %s\n' "$name" "$mode" "$into/$name.log"
        status=1
        return
    fi
    rm "$into/junit_${name}_01.xml"
    if [ "$procs" = list ]; then
        echo "$name: $(count '[a-z]+' "$report")"
        names '[a-z]+' "$report" | sed -n 's/^\[It\]/   /p' | sort
        return
    fi
    passed=$(count passed "$report") skipped=$(count skipped "$report")
    failed=$(grep -cE "<testcase [^>]* status=\"($failures)\"" "$report")
    printf '%-14s %-9s %6d %6d %7d %7d\n' "$name" "$mode" "$passed" "$failed" "$skipped" \
        $((SECONDS - start))
    names "$failures" "$report" | sed 's/^\[It\] //; s/^/    failed: /'
    sed -nE 's/.*<skipped message="skipped - ([^"]*)".*/    skipped: \1/p' "$report" | sort | uniq
    if [ $code -ne 0 ] || [ "$failed" -ne 0 ]; then
        status=1
    elif [ "$passed" -lt "$specs" ]; then
        echo "    $passed passed, of $specs that should have: see $into/$name.log"
        status=1
    fi
}

[ "$procs" = list ] ||
    printf '%-14s %-9s %6s %6s %7s %7s\n' group proxy passed failed skipped seconds
# shellcheck source=groups
. "$here/groups"
exit $status
