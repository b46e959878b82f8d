//! A made-up machine for `drainwatch setup`, `doctor` and `clean`: tools, a Go and release hosts of
//! its own, so that the tests neither need a network nor install anything.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// Each host tool that a local cluster calls.
pub const TOOLS: [&str; 10] = [
    "runc",
    "iptables",
    "ip6tables",
    "iptables-restore",
    "nft",
    "conntrack",
    "ip",
    "nsenter",
    "unshare",
    "mount",
];

/// Each component's binary, with what it says about its version.
pub const BINARIES: [(&str, &str); 13] = [
    ("kube-apiserver", "Kubernetes v1.34.0"),
    ("kube-controller-manager", "Kubernetes v1.34.0"),
    ("kube-scheduler", "Kubernetes v1.34.0"),
    ("kube-proxy", "Kubernetes v1.34.0"),
    ("kubelet", "Kubernetes v1.34.0"),
    ("etcd", "etcd Version: 3.6.4"),
    ("containerd", "containerd github.com/containerd/containerd/v2 v2.1.5"),
    ("containerd-shim-runc-v2", "containerd-shim-runc-v2:\n  Version:  v2.1.5"),
    ("ctr", "ctr github.com/containerd/containerd/v2 v2.1.5"),
    ("ptp", "CNI ptp plugin v1.8.0\nCNI protocol versions supported: 0.1.0"),
    ("loopback", "CNI loopback plugin v1.8.0"),
    ("host-local", "CNI host-local plugin v1.8.0"),
    ("portmap", "CNI portmap plugin version unknown\nCNI protocol versions supported: 0.1.0"),
];

/// What is only had where it is asked for.
pub const EXTRAS: [(&str, &str); 2] = [
    ("coredns", "CoreDNS-1.12.1\nlinux/amd64, go1.24.1, 707c7c1"),
    ("kubectl", "Client Version: v1.34.0\nKustomize Version: v5.7.1"),
];

/// Folders of its own for everything that `setup` looks at.
pub struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// One with all tools, without Go and without components.
    pub fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        for tool in TOOLS {
            machine.tool(tool, &format!("echo {tool} 1.0"));
        }
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The cache's folder of components.
    pub fn components(&self) -> PathBuf {
        self.path("cache/drainwatch/components")
    }

    /// Installs a tool.
    pub fn tool(&self, name: &str, script: &str) {
        write_script(&self.path("tools").join(name), script);
    }

    /// Installs a Go of a version whose builds take as long as `build`, a piece of shell.
    pub fn go(&self, version: &str, build: &str) {
        let mut binaries = String::new();
        for (name, says) in BINARIES.into_iter().chain(EXTRAS) {
            // Go names etcd after its package's folder.
            let (package, output) = match name {
                "etcd" => ("server/v3", "server"),
                _ => (name, name),
            };
            binaries += &format!(
                "case $p in */{package}) printf '#!/bin/sh\\ncat <<EOF\\n%s\\nEOF\\n' '{says}' \
                 > $out/{output}; chmod 755 $out/{output};; esac\n"
            );
        }
        self.tool(
            "go",
            &format!(
                r#"PATH=/usr/bin:/bin
echo "$@" >> '{log}'
case "$1" in
env)
    shift
    for name in "$@"; do
        case $name in GOVERSION) echo {version};; *) echo '{go_cache}';; esac
    done;;
mod)
    mkdir -p '{go_cache}'
    printf 'module x\ngo 1.24.0\nreplace k8s.io/api => ./staging/src/k8s.io/api\n' > '{go_cache}/mod'
    echo '{{"GoMod": "{go_cache}/mod", "Sum": "h1:sum"}}';;
build)
    {build}
    while [ "$1" != -o ]; do shift; done
    out=$2; shift 2
    for p in "$@"; do
        {binaries}
    done;;
esac"#,
                log = self.path("go.log").display(),
                go_cache = self.path("go-cache").display(),
            ),
        );
    }

    /// What Go was called with.
    pub fn go_calls(&self) -> String {
        fs::read_to_string(self.path("go.log")).unwrap_or_default()
    }

    /// A flat folder of all components.
    pub fn folder_of_components(&self) -> PathBuf {
        let folder = self.path("flat");
        for (name, says) in BINARIES {
            write_script(&folder.join(name), &says_script(says));
        }
        folder
    }

    /// `drainwatch setup` on this machine, with release hosts at `mirror`.
    pub fn setup(&self, mirror: &str) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_drainwatch"));
        command
            .arg("setup")
            .env_clear()
            .env("HOME", self.path("home"))
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("DRAINWATCH_HOST_PATH", self.path("tools"))
            .env("DRAINWATCH_MIRROR", mirror);
        command
    }
}

pub fn write_script(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn says_script(says: &str) -> String {
    format!("cat <<EOF\n{says}\nEOF")
}

/// What a host answers for a path.
#[derive(Clone)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
    /// The Content-Length that is claimed.
    pub length: usize,
}

/// A local HTTP server with the release hosts as segments of its paths.
pub struct Mirror {
    pub url: String,
    pub answers: Arc<Mutex<BTreeMap<String, Answer>>>,
    pub requests: Arc<Mutex<Vec<String>>>,
}

impl Mirror {
    /// One that has all components of v1.34.0.
    pub fn full() -> Self {
        let mirror = Self::empty();
        let archives = [
            ("etcd-io/etcd", "v3.6.4", "etcd-v3.6.4-linux-ARCH.tar.gz", "SHA256SUMS", 5..6),
            (
                "containerd/containerd",
                "v2.1.5",
                "containerd-static-2.1.5-linux-ARCH.tar.gz",
                "containerd-static-2.1.5-linux-ARCH.tar.gz.sha256sum",
                6..9,
            ),
            (
                "containernetworking/plugins",
                "v1.8.0",
                "cni-plugins-linux-ARCH-v1.8.0.tgz",
                "cni-plugins-linux-ARCH-v1.8.0.tgz.sha256",
                9..13,
            ),
        ];
        for (project, version, file, sums, which) in archives {
            let (file, sums) = (file.replace("ARCH", arch()), sums.replace("ARCH", arch()));
            let folder = format!("/github.com/{project}/releases/download/{version}");
            let body = archive(&BINARIES[which]);
            let sum = format!("{}  other\n{}  {file}\n", "0".repeat(64), sha256(&body));
            mirror.put(&format!("{folder}/{sums}"), sum.as_bytes());
            mirror.put(&format!("{folder}/{file}"), &body);
        }
        let folder = "/github.com/coredns/coredns/releases/download/v1.12.1";
        let (file, body) = (format!("coredns_1.12.1_linux_{}.tgz", arch()), archive(&EXTRAS[..1]));
        let sum = format!("{}  {file}\n", sha256(&body));
        mirror.put(&format!("{folder}/{file}.sha256"), sum.as_bytes());
        mirror.put(&format!("{folder}/{file}"), &body);
        for (name, says) in BINARIES[..5].iter().chain(&EXTRAS[1..]) {
            let path = format!("/dl.k8s.io/release/v1.34.0/bin/linux/{}/{name}", arch());
            let body = format!("#!/bin/sh\n{}\n", says_script(says)).into_bytes();
            mirror.put(&format!("{path}.sha256"), sha256(&body).as_bytes());
            mirror.put(&path, &body);
        }
        mirror
    }

    /// One that answers each request with 404.
    pub fn empty() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mirror = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            answers: Arc::default(),
            requests: Arc::default(),
        };
        let (answers, requests) = (mirror.answers.clone(), mirror.requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let first = lines.next().unwrap_or_else(|| Ok(String::new())).unwrap();
                while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
                let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
                let answer = answers.lock().unwrap().get(&path).cloned();
                let answer = answer.unwrap_or(Answer { status: 404, body: vec![], length: 0 });
                requests.lock().unwrap().push(path);
                let head = format!(
                    "HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    answer.status, answer.length
                );
                // The client may have gone away.
                let _ = stream.write_all(head.as_bytes());
                let _ = stream.write_all(&answer.body);
            }
        });
        mirror
    }

    pub fn put(&self, path: &str, body: &[u8]) {
        let answer = Answer { status: 200, body: body.to_vec(), length: body.len() };
        self.answers.lock().unwrap().insert(path.to_owned(), answer);
    }

    /// Changes the answers to all paths that contain a text.
    pub fn change(&self, text: &str, change: impl Fn(&mut Answer)) {
        let mut answers = self.answers.lock().unwrap();
        let mut some = false;
        for (_, answer) in answers.iter_mut().filter(|(path, _)| path.contains(text)) {
            change(answer);
            some = true;
        }
        assert!(some, "no path contains {text}");
    }

    /// How many requests there were for paths that end so.
    pub fn count(&self, end: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|path| path.ends_with(end)).count()
    }
}

fn archive(binaries: &[(&str, &str)]) -> Vec<u8> {
    let gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gz);
    for (name, says) in binaries.iter().chain(&[("README.md", "not wanted")]) {
        let body = format!("#!/bin/sh\n{}\n", says_script(says));
        let mut header = tar::Header::new_gnu();
        header.set_size(body.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, format!("some-folder/{name}"), body.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
