#!/usr/bin/env bash
# Runs drainwatch in a virtual machine with Debian 12, systemd and cgroup v2, which is what most
# hosts have, and looks at what it measured and at what it left. See README.md in this folder.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)

with=uml
binary=$repository/target/release/drainwatch
components=${XDG_CACHE_HOME:-$HOME/.cache}/drainwatch/components
work=
logs=
bound=
install=no
guest_options=()

usage() {
    cat <<USAGE
Usage: tests/vm/cgroup2.sh [OPTIONS]

  --with uml|qemu     user-mode-linux (about the host's speed, one processor, no cpuset; the
                      default) or QEMU's emulation (a stock kernel, two processors, slow)
  --binary FILE       the drainwatch to run [target/release/drainwatch]
  --components DIR    what \`drainwatch setup\` made [~/.cache/drainwatch/components]
  --proxy-mode MODE   kube-proxy's mode in the guest [iptables]
  --nodes N           of each cluster [2]
  --only STEP         one step of the guest's: apply, stop or kill (may be repeated)
  --logs DIR          where records and logs go [a new folder below the system's for temporary files]
  --work DIR          a folder for the machine that is kept, and that a later run goes on from
                      [a new one, removed at the end]
  --bound SECONDS     how long the machine may run [uml: 900, qemu: 3600]
  --install           install what is missing with apt-get

Exit codes: 0 all that was looked at was right; 1 it was not, or the machine did not run to its
end: the log's end is printed; 2 the command line is wrong or something is missing here.
USAGE
}

wrong() {
    printf 'cgroup2.sh: %s\n' "$*" >&2
    exit 2
}

note() { printf '%6s s  %s\n' "$SECONDS" "$*"; }

while (($#)); do
    case $1 in
        --install) install=yes ;;
        -h | --help) usage; exit 0 ;;
        --with | --binary | --components | --proxy-mode | --nodes | --only | --logs | --work | --bound)
            (($# > 1)) || wrong "$1 wants a value"
            case $1 in
                --with) with=$2 ;;
                --binary) binary=$2 ;;
                --components) components=$2 ;;
                --logs) logs=$2 ;;
                --work) work=$2 ;;
                --bound) bound=$2 ;;
                *) guest_options+=("$1" "$2") ;;
            esac
            shift
            ;;
        *) usage >&2; wrong "no such option: $1" ;;
    esac
    shift
done

case $with in
    uml) emulator=linux.uml packages=(user-mode-linux) bound=${bound:-900} ;;
    qemu) emulator=qemu-system-x86_64 packages=(qemu-system-x86) bound=${bound:-3600} ;;
    *) wrong "--with is uml or qemu, not $with" ;;
esac

((EUID == 0)) || wrong "making a root file system needs root"
[[ $(uname -m) == x86_64 ]] || wrong "the machine is an x86_64, this host is not"
if [[ $install == yes ]]; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
        mmdebstrap e2fsprogs "${packages[@]}"
fi
PATH=$PATH:/usr/sbin:/sbin
for tool in mmdebstrap mkfs.ext4 debugfs "$emulator"; do
    command -v "$tool" > /dev/null ||
        wrong "$tool is missing: apt-get install mmdebstrap e2fsprogs ${packages[*]}, or --install"
done
[[ -x $binary ]] || wrong "no binary $binary: cargo build --release, or --binary FILE"
[[ -d $components/kubernetes ]] || wrong "no components in $components: drainwatch setup"

keep=yes
if [[ -z $work ]]; then
    keep=no
    work=$(mktemp -d --tmpdir drainwatch-vm.XXXXXX)
fi
mkdir -p "$work"
logs=${logs:-$(mktemp -d --tmpdir drainwatch-vm-logs.XXXXXX)}
mkdir -p "$logs"
work=$(realpath "$work")
logs=$(realpath "$logs")
machine=

end() {
    local code=$?
    trap - EXIT
    if [[ -n $machine ]]; then
        # The watch over its time hands the signal on, and sends SIGKILL where that is not enough.
        kill -TERM "$machine" 2> /dev/null || true
        wait "$machine" 2> /dev/null || true
    fi
    # user-mode-linux is a session of its own, whose helpers outlive it where it is killed.
    local pid
    if pid=$(cat "$work/uml/drainwatch-vm-$$/pid" 2> /dev/null); then
        pkill -KILL --pgroup "$pid" --exact linux.uml || true
    fi
    if [[ $keep == no ]]; then rm -rf --one-file-system "$work"; fi
    if ((code == 1)); then
        printf -- '--- the end of %s/console.log\n' "$logs" >&2
        tail -n 60 "$logs/console.log" >&2 || true
        printf -- '---\n' >&2
    fi
    exit "$code"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# The system: made once a work folder. QEMU's kernel and its initrd come out of it.
base=$work/$with.tar
if [[ ! -s $base ]]; then
    note "make Debian 12 with systemd and what the local provider wants"
    include=systemd,systemd-sysv,dbus,udev,kmod,procps,jq,ca-certificates
    include+=,runc,iptables,ipset,nftables,conntrack,iproute2
    if [[ $with == qemu ]]; then include+=,linux-image-cloud-amd64,initramfs-tools; fi
    mmdebstrap --quiet --format=tar --variant=minbase --include="$include" bookworm "$base.new"
    mv "$base.new" "$base"
fi

root=$work/root
rm -rf --one-file-system "$root"
mkdir "$root"
tar -C "$root" --numeric-owner -xf "$base"
if [[ $with == uml ]]; then
    mkdir -p "$root/usr/lib/modules"
    cp -a /usr/lib/uml/modules/. "$root/usr/lib/modules/"
    # Its nf_tables knows no IPv4, so that iptables has to be the older one.
    for tool in iptables ip6tables; do
        chroot "$root" update-alternatives --quiet --set "$tool" "/usr/sbin/$tool-legacy"
    done
else
    kernel=$(echo "$root"/boot/vmlinuz-*)
    cp "$kernel" "$work/vmlinuz"
    cp "$root"/boot/initrd.img-* "$work/initrd"
    rm -rf "${root:?}/boot"
    mkdir "$root/boot"
fi

# drainwatch, the components and the guest's part of this.
own=$root/opt/drainwatch
mkdir -p "$own" "$root/root/.cache/drainwatch"
install -m 755 "$binary" "$own/drainwatch"
install -m 755 "$here/guest.sh" "$own/guest.sh"
cp -a "$components" "$root/root/.cache/drainwatch/components"
printf 'drainwatch-vm\n' > "$root/etc/hostname"
: > "$root/etc/machine-id"
cat > "$root/etc/systemd/system/drainwatch-vm.service" <<UNIT
[Unit]
Description=drainwatch in a virtual machine
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=idle
Environment=HOME=/root
ExecStart=/opt/drainwatch/guest.sh ${guest_options[*]}
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
UNIT
chroot "$root" systemctl --quiet enable drainwatch-vm.service
# Nobody logs in, and nothing may come and go while the host's state is compared.
chroot "$root" systemctl --quiet mask getty@.service serial-getty@.service console-getty.service \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    systemd-tmpfiles-clean.timer
note "make the disk"
truncate --size=4G "$work/disk.new"
mkfs.ext4 -q -F -E lazy_itable_init=0 -O ^has_journal -d "$root" "$work/disk.new"
mv "$work/disk.new" "$work/disk"
rm -rf --one-file-system "$root"

common="rw panic=-1 systemd.unified_cgroup_hierarchy=1 systemd.show_status=false quiet"
case $with in
    uml)
        # On one processor (the last of those that we may have): each system call of the guest's is
        # two switches between processes of ours, which cost five times as much between processors.
        processor=$(taskset --cpu-list --pid $$ | sed 's/.*[^0-9]//')
        command=(taskset --cpu-list "$processor" linux.uml "ubd0=$work/disk" root=/dev/ubda mem=3G
            "umid=drainwatch-vm-$$" "uml_dir=$work/uml" con=null ssl=null "con0=null,fd:1"
            console=tty0)
        read -ra words <<< "$common"
        command+=("${words[@]}")
        mkdir -p "$work/uml"
        ;;
    qemu)
        command=(qemu-system-x86_64 -accel "tcg,thread=multi" -cpu max -smp 2 -m 3G
            -kernel "$work/vmlinuz" -initrd "$work/initrd"
            -append "root=/dev/vda console=ttyS0 net.ifnames=0 $common"
            -drive "file=$work/disk,if=virtio,format=raw,cache=unsafe"
            -nic none -display none -monitor none -serial stdio -no-reboot)
        ;;
esac
note "boot it with $with, for $bound s at most"
set -m
timeout --kill-after=10 "$bound" "${command[@]}" < /dev/null > "$logs/console.log" 2>&1 &
machine=$!
set +m
code=0
wait "$machine" || code=$?
machine=
note "it has ended, with exit code $code"

rm -rf "$logs/guest"
mkdir "$logs/guest"
debugfs -R "rdump /var/opt/drainwatch $logs/guest" "$work/disk" > "$logs/debugfs.log" 2>&1 || true
verdict=$logs/guest/drainwatch/verdict
if [[ ! -s $verdict ]]; then
    printf 'cgroup2.sh: the guest came to no verdict\n' >&2
    exit 1
fi
cat "$verdict"
printf 'records and logs: %s\n' "$logs"
[[ $(tail -n 1 "$verdict") == ok ]] || exit 1
