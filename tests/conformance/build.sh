#!/usr/bin/env bash
# Makes what Kubernetes' own end-to-end specs need, from Go modules and the distribution's packages:
# e2e.test, ginkgo, kubectl, and one archive with the images that the specs' pods run.
#
#   build.sh FOLDER [VERSION]
#
# What is there already is left alone. Nothing is installed on this machine.
set -euo pipefail

into=${1:?usage: build.sh FOLDER [VERSION]}
version=${2:-1.34.0}
# The version that `drainwatch setup --dns` builds, so that it is compiled once.
coredns=v1.12.1
mkdir -p "$into"
into=$(cd "$into" && pwd)
[[ $version =~ ^1\.([0-9]+)\.[0-9]+$ ]] || { echo "not a version of Kubernetes: $version" >&2; exit 2; }
minor=${BASH_REMATCH[1]}

missing=
for tool in go apt-get dpkg-deb tar sha256sum; do
    command -v "$tool" >/dev/null || missing+=" $tool"
done
[ -z "$missing" ] || { echo "missing on this machine:$missing" >&2; exit 1; }

# As drainwatch builds the components, so that Go finds most packages compiled already.
export CGO_ENABLED=0 GOTOOLCHAIN=local GO111MODULE=on GOWORK=off GOFLAGS="-mod=mod -buildvcs=false"
unset GOOS GOARCH GOEXPERIMENT GODEBUG
stamp="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    stamp+=" -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=$minor"
    stamp+=" -X $package.gitTreeState=clean"
done

work=$(mktemp -d "$into/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
export GOTMPDIR=$work

say() { printf '%(%H:%M:%S)T  %s\n' -1 "$*"; }

# A module that requires Kubernetes and the published form of each of its staging folders.
go_module() {
    mkdir "$work/module"
    cd "$work/module"
    local module
    module=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/^\t"GoMod": "\(.*\)",$/\1/p')
    {
        echo "module drainwatch.local/conformance"
        grep -E '^(go|godebug) ' "$module"
        echo "require k8s.io/kubernetes v$version"
        sed -nE "s#^(replace|\t)? *(k8s\.io/[a-z-]+) => \./staging/.*#replace \2 => \2 v0.${version#1.}#p" "$module"
    } > go.mod
}

programs() {
    say "building e2e.test, ginkgo, kubectl and agnhost $version (some minutes)"
    go_module
    cd "$work/module"
    go test -c -trimpath -ldflags "$stamp" -o "$work/e2e.test" k8s.io/kubernetes/test/e2e
    go build -trimpath -ldflags "$stamp" -o "$work/" github.com/onsi/ginkgo/v2/ginkgo \
        k8s.io/kubernetes/cmd/kubectl
    mkdir -p "$into/pods"
    go build -trimpath -ldflags "$stamp" -o "$into/pods/" k8s.io/kubernetes/test/images/agnhost \
        k8s.io/kubernetes/test/images/regression-issue-74839
    cp "$(go list -f '{{.Dir}}' k8s.io/kubernetes/test/images/agnhost)"/porter/localhost.{crt,key} "$into/pods/"
    say "building CoreDNS $coredns"
    mkdir "$work/dns"
    cd "$work/dns"
    go mod init drainwatch.local/coredns 2>/dev/null
    go get -tool "github.com/coredns/coredns@$coredns" 2>/dev/null
    go build -trimpath -ldflags "-s -w" -o "$into/pods/coredns" github.com/coredns/coredns
    chmod -R u+w "$into/pods"
    # Last: these say that all of it is there.
    mv "$work/ginkgo" "$work/kubectl" "$work/e2e.test" "$into/"
}

# A file system of the distribution's packages, unpacked and not installed: the tools that the
# specs run in their pods (nc, curl, dig, ss, conntrack, a shell).
root() {
    say "unpacking the distribution's packages"
    local status=$work/status archives=$work/archives root=$work/root package name
    : > "$status"
    mkdir -p "$archives/partial" "$root"/{usr/bin,usr/sbin,usr/lib,usr/lib64,etc,tmp,root,proc,sys,dev,var/tmp}
    local options=(-qq -y -o Dir::State::status="$status" -o Dir::Cache::archives="$archives"
        -o APT::Sandbox::User=root -o Debug::NoLocking=1 --no-install-recommends)
    # An empty list of what is installed, so that apt fetches everything that these need.
    local packages=(base-passwd bash bind9-dnsutils busybox-static conntrack coreutils curl grep
        iperf iproute2 iptables libc-bin netbase netcat-openbsd wget)
    apt-get "${options[@]}" --download-only install "${packages[@]}" >"$work/apt.log" 2>&1 || {
        cat "$work/apt.log" >&2
        echo "apt-get could not fetch packages; with an old list of them, run \`apt-get update\`" >&2
        exit 1
    }
    for name in bin sbin lib lib64; do
        ln -s "usr/$name" "$root/$name"
    done
    for package in "$archives"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink \
            --exclude='./usr/share/doc' --exclude='./usr/share/man' --exclude='./usr/share/locale' \
            --exclude='./usr/share/info' --exclude='./var/lib/dpkg'
    done
    # What the packages' own scripts would have done, as far as it counts here.
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    cp "$root/usr/share/libc-bin/nsswitch.conf" "$root/etc/nsswitch.conf"
    # Not BusyBox's shell: the distribution's prefers its own nc, grep, … to those on the PATH.
    ln -sf bash "$root/bin/sh"
    ln -sf nc.openbsd "$root/bin/nc"
    for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
        ln -sf "${name/tables/tables-nft}" "$root/usr/sbin/$name"
    done
    # BusyBox for everything that no package brought. Its wget ends with a segmentation fault where
    # it is given a timeout (Debian 12), so wget is a package's.
    for name in $("$root/bin/busybox" --list); do
        [ -e "$root/usr/bin/$name" ] || [ -L "$root/usr/bin/$name" ] || [ -e "$root/usr/sbin/$name" ] ||
            ln -s busybox "$root/usr/bin/$name"
    done
    chmod 1777 "$root/tmp" "$root/var/tmp"
    mkdir -p "$root/usr/local/apache2/htdocs" "$root/uploads"
    echo '<html><body><h1>It works!</h1></body></html>' > "$root/usr/local/apache2/htdocs/index.html"
    # The group that a spec expects in agnhost's image.
    echo 'user-defined-in-image:x:1000:1000::/:/bin/sh' >> "$root/etc/passwd"
    printf '%s\n' 'user-defined-in-image:x:1000:' \
        'group-defined-in-image:x:50000:user-defined-in-image' >> "$root/etc/group"
}

# tar with nothing in it that differs from one build to the next.
pack() { tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -c "$@"; }

# Puts a file into the archive under its digest; prints the digest.
blob() {
    local digest
    digest=$(sha256sum < "$1" | cut -d' ' -f1)
    mv "$1" "$work/archive/$digest"
    echo "$digest"
}

images() {
    say "making the images"
    mkdir "$work/archive" "$work/layer"
    root
    local base layer entries='' config digest
    pack -C "$work/root" -f "$work/base.tar" .
    base=$(blob "$work/base.tar")
    cp "$into/pods"/* "$work/layer/"
    ln -s agnhost "$work/layer/agnhost-2"
    pack -C "$work/layer" -f "$work/layer.tar" .
    layer=$(blob "$work/layer.tar")

    # NAME COMMAND: each in the words of JSON. The name in the label keeps images apart that
    # differ in nothing else: a container runtime would take them for one.
    image() {
        printf '{"architecture":"%s","os":"linux","config":{"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"WorkingDir":"/","Labels":{"name":"%s"},%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s","sha256:%s"]}}' \
            "$(go env GOARCH)" "$1" "$2" "$base" "$layer" > "$work/config"
        config=$(blob "$work/config")
        entries+=${entries:+,}$(printf '{"Config":"%s","RepoTags":["%s"],"Layers":["%s","%s"]}' \
            "$config" "$1" "$base" "$layer")
    }
    # The names that this e2e.test asks for.
    local name names
    names=$("$into/e2e.test" --list-images 2>/dev/null | sort)
    for name in $names; do
        case $name in
            */e2e-test-images/agnhost:*) image "$name" '"Entrypoint":["/agnhost"],"Cmd":["pause"]' ;;
            */busybox:* | */jessie-dnsutils:* | */distroless-iptables:*) image "$name" '"Cmd":["/bin/sh"]' ;;
            */regression-issue-74839:*) image "$name" '"Entrypoint":["/regression-issue-74839"]' ;;
            # Stand-ins. The specs run here need no more of them than that they wait, or that
            # they serve files on port 80.
            */pause:*) image "$name" '"Entrypoint":["/agnhost","pause"]' ;;
            */httpd:* | */nginx:*)
                image "$name" '"Cmd":["busybox","httpd","-f","-p","80","-h","/usr/local/apache2/htdocs"]' ;;
        esac
    done
    printf '[%s]' "$entries" > "$work/archive/manifest.json"
    pack -C "$work/archive" -f "$work/images.tar" manifest.json $(cd "$work/archive" && ls | grep -v manifest)
    mv "$work/images.tar" "$into/images.tar"
}

[ -x "$into/e2e.test" ] || programs
[ -f "$into/images.tar" ] || images
say "ready: $into"
