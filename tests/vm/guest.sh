#!/usr/bin/env bash
# Runs in the guest of cgroup2.sh, as its one service. Writes all that is to be kept below
# /var/opt/drainwatch, and last of all there `verdict`: a line for each thing looked at, then `ok`
# or `failed`.
set -uo pipefail

out=/var/opt/drainwatch
mkdir -p "$out"
cd "$out" || exit 1
drainwatch=/opt/drainwatch/drainwatch
proxy_mode=iptables
nodes=2
steps=()
while (($#)); do
    case $1 in
        --proxy-mode) proxy_mode=$2 ;;
        --nodes) nodes=$2 ;;
        --only) steps+=("$2") ;;
        *) echo "no such option: $1"; exit 1 ;;
    esac
    shift 2
done
((${#steps[@]})) || steps=(apply stop kill)

failures=0
say() {
    printf '%7s %s\n' "$(cut -d' ' -f1 /proc/uptime)" "$*" | tee -a verdict
}
# expect WHAT COMMAND…: notes whether the command succeeds.
expect() {
    local what=$1
    shift
    if "$@" > expected.out 2>&1; then
        say "ok      $what"
    else
        say "FAILED  $what"
        sed 's/^/                 /' expected.out | head -n 40 | tee -a verdict
        failures=$((failures + 1))
    fi
}

# Everything that a cluster could leave, one item a line.
state() {
    ip -o link | awk -F': ' '{print "link", $2}'
    ip -4 route show table all | sed 's/^/route /'
    ip rule | sed 's/^/rule /'
    ls /run/netns 2> /dev/null | sed 's/^/netns /'
    findmnt -rno TARGET,FSTYPE | sed 's/^/mount /'
    # By kind and program: those of systemd's own services come and go.
    lsns -rno TYPE,NS,COMMAND | awk '$3 !~ /systemd|dbus/ {print "namespace", $1, $2}'
    # systemd's slices come and go as well; what they hold are not ours.
    (cd /sys/fs/cgroup && find . -mindepth 1 -type d ! -path './*.slice*' ! -path './*.scope') |
        sed 's/^/cgroup /'
    sed 's/^/controllers /' /sys/fs/cgroup/cgroup.subtree_control
    for name in kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys \
        kernel.keys.root_maxbytes vm.overcommit_memory vm.panic_on_oom net.ipv4.ip_forward \
        net.ipv4.conf.all.route_localnet; do
        echo "sysctl $name=$(sysctl -n "$name" 2> /dev/null)"
    done
    iptables-save 2> /dev/null | grep -v '^#' | sed 's/\[.*//; s/^/iptables /'
    nft list ruleset 2> /dev/null | sed 's/^/nftables /'
    for path in /etc/cni /etc/containerd /etc/kubernetes /opt/cni /opt/containerd /run/containerd \
        /run/runc /run/drainwatch /run/drainwatch.* /usr/libexec/kubernetes /var/lib/cni /var/lib/containerd \
        /var/lib/etcd /var/lib/kubelet /var/log/containers /var/log/pods /tmp/*; do
        if [[ -e $path ]]; then echo "path $path"; fi
    done
    # Programs, but for the kernel's threads and this script's own.
    ps -eo pid=,ppid=,comm= | awk -v own=$$ '
        {parent[$1] = $2; name[$1] = $3}
        END {
            for (pid in name) {
                for (up = pid + 0; up > 2 && up != own; up = parent[up]);
                if (up == 2 || up == own || name[pid] ~ /^(\(sd|\(udev|systemd)/) continue
                print "process", pid, name[pid]
            }
        }'
}

unchanged() {
    local deadline=$((SECONDS + 30))
    until state | LC_ALL=C sort > now && cmp -s before now; do
        if ((SECONDS > deadline)); then
            diff before now
            return 1
        fi
        sleep 1
    done
}

# What hardware has and user-mode-linux does not: kubelet refuses to start without a clock's speed.
if ! grep -q 'cpu MHz' /proc/cpuinfo && [[ ! -e /sys/devices/system/cpu/cpu0/cpufreq ]]; then
    mount -t tmpfs -o mode=0755 tmpfs /sys/devices/system/cpu
    mkdir -p /sys/devices/system/cpu/cpu0/cpufreq
    for file in online possible present; do echo 0 > "/sys/devices/system/cpu/$file"; done
    echo 1000000 > /sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq
    say "note    a clock's speed was made up for kubelet"
fi
# As on a host that has used them: modules that load later change what sysctl shows.
modprobe -a overlay veth bridge nf_conntrack 2>&1 | sed 's/^/modprobe: /'

{
    uname -a
    grep PRETTY_NAME /etc/os-release
    systemctl --version | head -n 1
    runc --version | head -n 1
    iptables --version
    nft --version
    printf 'processors %s\n' "$(nproc)"
    grep -E 'MemTotal|MemAvailable' /proc/meminfo
    findmnt -no FSTYPE,OPTIONS /sys/fs/cgroup
    printf 'controllers %s\n' "$(cat /sys/fs/cgroup/cgroup.controllers)"
    printf 'of them on below the root %s\n' "$(cat /sys/fs/cgroup/cgroup.subtree_control)"
    "$drainwatch" --version
} > machine.txt 2>&1
expect "process 1 is systemd" test "$(cat /proc/1/comm)" = systemd
expect "/sys/fs/cgroup is cgroup version 2" test "$(findmnt -no FSTYPE /sys/fs/cgroup)" = cgroup2
expect "no cgroup version 1 is mounted" test -z "$(findmnt -t cgroup -no TARGET)"

# Few flows and slow ones: such a machine has no time to spare, and no figure of it counts.
for sigterm in exit drain; do
    cat > "$sigterm.toml" << TOML
sigterm = "$sigterm"
grace_period = "10s"
settle = "3s"
observe_after = "1s"
repeats = 1
flows = { tcp = 3, udp = 3, tcp_interval = "500ms", udp_interval = "500ms" }
cluster = { nodes = $nodes, proxy_mode = "$proxy_mode" }
TOML
done
sed 's/^settle = .*/settle = "300s"/' exit.toml > long.toml
cp exit.toml after.toml

# start NAME: a run of NAME.toml as a service of its own; `systemd-run`'s options may follow.
start() {
    local name=$1
    shift
    systemd-run --quiet --unit="drainwatch-$name" --setenv=HOME=/root \
        --property=StandardOutput="append:$out/$name.log" \
        --property=StandardError="append:$out/$name.log" "$@" \
        "$drainwatch" apply --verbose --output "$out/$name" "$out/$name.toml"
}
# One whole run, and what it measured.
run() {
    local name=$1 code=0
    start "$name" --wait || code=$?
    expect "$name: exit code 0" test "$code" = 0
    [[ $code == 0 ]] || tail -n 20 "$name.log" | tee -a verdict
    expect "$name: its trial is measured" \
        jq -e '.outcome == "measured"' "$name/$name/trial-001.json"
    expect "$name: each flow was answered" \
        jq -e '(.flows | length == 6) and all(.flows[]; .spans | length > 0)' \
        "$name/$name/trial-001.json"
    expect "$name: the environment says v2, $nodes nodes and $proxy_mode" \
        jq -e --arg mode "$proxy_mode" --arg nodes "$nodes" '.fixed | ."cgroup version" == "v2"
            and .nodes == $nodes and ."proxy mode" == $mode' "$name/environment/$name.json"
    expect "$name: nothing is left" unchanged
}
# Waits until the flows of a run of long.toml live.
wait_settling() {
    local _
    for _ in $(seq 600); do
        if grep -qi settl "$1.log" 2> /dev/null; then return 0; fi
        systemctl --quiet is-active "drainwatch-$1" || break
        sleep 0.5
    done
    tail -n 20 "$1.log"
    return 1
}

state | LC_ALL=C sort > before
for step in "${steps[@]}"; do
    case $step in
        apply)
            run exit
            run drain
            ;;
        stop)
            # systemd tells each process of the service at once; the supervisor has to outlive that.
            start long
            expect "stop: flows live" wait_settling long
            (cd /sys/fs/cgroup/drainwatch && find . -type d -exec sh -c \
                'echo "$1: $(cat "$1/cgroup.subtree_control"), $(wc -l < "$1/cgroup.procs")"' - {} \;) \
                > cgroups.txt
            expect "stop: systemctl stop" systemctl stop drainwatch-long
            expect "stop: nothing is left" unchanged
            systemctl reset-failed drainwatch-long 2> /dev/null
            mv long stopped
            mv long.log stopped.log
            ;;
        kill)
            # Runner and supervisor die at one time, so that nobody removes anything before the
            # next run comes.
            start long
            expect "kill: flows live" wait_settling long
            expect "kill: systemctl kill" systemctl kill --signal=KILL drainwatch-long
            sleep 2
            systemctl reset-failed drainwatch-long 2> /dev/null
            expect "kill: no process is left" sh -c '! pgrep -x "etcd|kubelet|containerd|probe|pause"'
            mv long killed
            mv long.log killed.log
            run after
            ;;
        *) say "FAILED  no such step: $step"; failures=$((failures + 1)) ;;
    esac
done

journalctl --no-pager --boot > journal.log 2>&1
dmesg > dmesg.log 2>&1
rm -f expected.out now
if ((failures)); then echo failed; else echo ok; fi >> verdict
tail -n 1 verdict
sync
((failures == 0))
