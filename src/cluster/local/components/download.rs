//! Official release binaries: which files of which hosts an item is made of, and how they come
//! here with the checksums that their projects publish.
//!
//! Takes an item and an empty folder; gives the folder with the item's binaries, or a reason to
//! get them in another way. A host that was found unreachable is not tried again. Knows nothing
//! of the cache and of other sources.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::process::Stop;
use super::versions::{Item, Part};
use crate::digest::hex;

/// Takes downloads from a mirror: `http://127.0.0.1:8000`, with each host as the first segment of
/// the path (`http://127.0.0.1:8000/dl.k8s.io/release/…`).
pub const MIRROR_VARIABLE: &str = "DRAINWATCH_MIRROR";

/// How long finding a host may take, how long reaching it (with TLS), and how long its first
/// answer: a closed network costs a few seconds a host, once.
const REACH: Duration = Duration::from_millis(2500);
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// How long a host that was reached may be silent.
const SILENCE: Duration = Duration::from_secs(20);

/// A file to download.
struct Asset {
    host: &'static str,
    path: String,
    /// The published checksum: a file with the digest alone, or with `digest  name` lines.
    sums: String,
}

impl Asset {
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Why an item could not be downloaded.
#[derive(Debug)]
pub enum Refusal {
    /// The host can't be reached or does not let us in; said once.
    Host(String),
    /// This file could not be had, or was not what it should be.
    File(String),
    /// It could not be written here.
    Io(PathBuf, io::Error),
    /// The user ended it.
    Stopped,
}

/// Downloads, and remembers which hosts could not be reached.
pub struct Downloads {
    agent: ureq::Agent,
    mirror: Option<String>,
    closed: BTreeMap<&'static str, String>,
}

impl Downloads {
    /// From the hosts themselves, or the mirror that the environment names.
    pub fn of_environment() -> Self {
        let mirror = std::env::var(MIRROR_VARIABLE).ok().filter(|url| !url.is_empty());
        Self::new(mirror)
    }

    fn new(mirror: Option<String>) -> Self {
        let agent = ureq::Agent::config_builder()
            .user_agent(concat!("drainwatch/", env!("CARGO_PKG_VERSION")))
            // Checksums are of the files as published: nothing may be compressed on the way.
            .accept_encoding("")
            .timeout_resolve(Some(REACH))
            .timeout_connect(Some(REACH))
            .timeout_per_read(Some(SILENCE))
            .build()
            .new_agent();
        Self { agent, mirror, closed: BTreeMap::new() }
    }

    /// A host's name for people, with the mirror that stands for it.
    pub fn source(&self, host: &str) -> String {
        match &self.mirror {
            Some(mirror) => format!("{host} (mirror {mirror})"),
            None => host.to_owned(),
        }
    }

    /// Whether a host is known to be unreachable, and why.
    pub fn closed(&self, part: Part) -> Option<&str> {
        self.closed.get(host(part)).map(String::as_str)
    }

    /// Downloads an item's binaries into a folder; gives where from. `progress` gets the name of
    /// a file and how many bytes of it are here.
    pub fn fetch(
        &mut self,
        item: &Item,
        architecture: &str,
        into: &Path,
        stop: &Stop,
        progress: &mut dyn FnMut(&str, u64),
    ) -> Result<String, Refusal> {
        let assets = assets(item, architecture);
        for asset in &assets {
            if let Some(reason) = self.closed.get(asset.host) {
                return Err(Refusal::Host(reason.clone()));
            }
            let expected = self.checksum(asset)?;
            let file = into.join(asset.name());
            // A connection that broke is tried once more; a wrong checksum is not.
            let sum = self.file(asset, &file, stop, progress).or_else(|refusal| match refusal {
                Refusal::File(_) if !stop.is_stopped() => self.file(asset, &file, stop, progress),
                other => Err(other),
            })?;
            if sum != expected {
                return Err(Refusal::File(format!(
                    "refused: {} has SHA-256 {sum}, published is {expected}",
                    self.url(asset, &asset.path)
                )));
            }
            if matches!(item.part, Part::Kubernetes | Part::Kubectl) {
                make_executable(&file)?;
            } else {
                unpack(item.part, &file, into)?;
                std::fs::remove_file(&file).map_err(|error| Refusal::Io(file, error))?;
            }
        }
        let urls: Vec<String> = assets.iter().map(|asset| self.url(asset, &asset.path)).collect();
        Ok(urls.join(" "))
    }

    fn url(&self, asset: &Asset, path: &str) -> String {
        match &self.mirror {
            Some(mirror) => format!("{}/{}/{path}", mirror.trim_end_matches('/'), asset.host),
            None => format!("https://{}/{path}", asset.host),
        }
    }

    /// Reads the published checksum. It is the first file that is asked for, so it also finds out
    /// whether the host can be reached.
    fn checksum(&mut self, asset: &Asset) -> Result<String, Refusal> {
        let url = self.url(asset, &asset.sums);
        let mut response = self.get(asset, &url, FIRST_ANSWER)?;
        let text = response.body_mut().with_config().limit(1 << 20).read_to_string();
        let text = text.map_err(|error| Refusal::File(format!("{url}: {error}")))?;
        // Not this file's fault: a login page of the network, say.
        parse_checksum(&text, asset.name())
            .ok_or_else(|| Refusal::File(format!("{url} holds no checksum of {}", asset.name())))
    }

    fn get(
        &mut self,
        asset: &Asset,
        url: &str,
        answer_within: Duration,
    ) -> Result<ureq::http::Response<ureq::Body>, Refusal> {
        let request = self.agent.get(url).config().timeout_recv_response(Some(answer_within));
        let error = match request.build().call() {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let reason = match &error {
            ureq::Error::StatusCode(404 | 410) => {
                return Err(Refusal::File(format!("{url} is not there")));
            }
            ureq::Error::StatusCode(status) => {
                format!("{} answers {status}", self.source(asset.host))
            }
            ureq::Error::Io(error) => {
                format!("{} can't be reached ({error})", self.source(asset.host))
            }
            other => format!("{} can't be reached ({other})", self.source(asset.host)),
        };
        self.closed.insert(asset.host, reason.clone());
        Err(Refusal::Host(reason))
    }

    /// Downloads one file; gives its SHA-256.
    fn file(
        &mut self,
        asset: &Asset,
        into: &Path,
        stop: &Stop,
        progress: &mut dyn FnMut(&str, u64),
    ) -> Result<String, Refusal> {
        let url = self.url(asset, &asset.path);
        let mut response = self.get(asset, &url, SILENCE)?;
        let mut reader = response.body_mut().as_reader();
        let failed = |error| Refusal::Io(into.to_owned(), error);
        let mut file = File::create(into).map_err(failed)?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 17];
        let mut bytes = 0;
        loop {
            if stop.is_stopped() {
                return Err(Refusal::Stopped);
            }
            let read = reader.read(&mut buffer);
            match read.map_err(|error| {
                Refusal::File(format!("{url} broke off after {bytes} bytes: {error}"))
            })? {
                0 => break,
                read => {
                    hash.update(&buffer[..read]);
                    file.write_all(&buffer[..read]).map_err(failed)?;
                    bytes += read as u64;
                    progress(asset.name(), bytes);
                }
            }
        }
        Ok(hex(&hash.finalize()))
    }
}

/// The host that publishes a part.
pub fn host(part: Part) -> &'static str {
    match part {
        Part::Kubernetes | Part::Kubectl => "dl.k8s.io",
        _ => "github.com",
    }
}

fn assets(item: &Item, arch: &str) -> Vec<Asset> {
    let version = &item.version;
    let host = host(item.part);
    let release = |project: &str, file: String, sums: String| {
        let folder = format!("{project}/releases/download/{version}");
        vec![Asset { host, path: format!("{folder}/{file}"), sums: format!("{folder}/{sums}") }]
    };
    match item.part {
        Part::Kubernetes | Part::Kubectl => {
            let asset = |binary: &&str| {
                let path = format!("release/{version}/bin/linux/{arch}/{binary}");
                Asset { host, sums: format!("{path}.sha256"), path }
            };
            item.part.binaries().iter().map(asset).collect()
        }
        Part::Etcd => release(
            "etcd-io/etcd",
            format!("etcd-{version}-linux-{arch}.tar.gz"),
            "SHA256SUMS".into(),
        ),
        Part::Containerd => {
            // The other archive's binaries need glibc 2.35 or newer.
            let bare = version.trim_start_matches('v');
            let file = format!("containerd-static-{bare}-linux-{arch}.tar.gz");
            release("containerd/containerd", file.clone(), format!("{file}.sha256sum"))
        }
        Part::CoreDns => {
            let bare = version.trim_start_matches('v');
            let file = format!("coredns_{bare}_linux_{arch}.tgz");
            release("coredns/coredns", file.clone(), format!("{file}.sha256"))
        }
        Part::Cni => {
            let file = format!("cni-plugins-linux-{arch}-{version}.tgz");
            release("containernetworking/plugins", file.clone(), format!("{file}.sha256"))
        }
    }
}

fn parse_checksum(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let sum = words.next()?;
        let is_sum = sum.len() == 64 && sum.chars().all(|c| c.is_ascii_hexdigit());
        // sha256sum marks binary mode with an asterisk.
        let file = words.next().map(|file| file.trim_start_matches('*').trim_start_matches("./"));
        (is_sum && file.is_none_or(|file| file == name)).then(|| sum.to_ascii_lowercase())
    })
}

/// Takes a part's binaries, and nothing else, out of an archive.
fn unpack(part: Part, archive: &Path, into: &Path) -> Result<(), Refusal> {
    let bad = |error| Refusal::File(format!("{} can't be unpacked: {error}", archive.display()));
    let file = File::open(archive).map_err(bad)?;
    let mut tar = tar::Archive::new(flate2::read::GzDecoder::new(io::BufReader::new(file)));
    for entry in tar.entries().map_err(bad)? {
        let mut entry = entry.map_err(bad)?;
        let path = entry.path().map_err(bad)?.into_owned();
        // Only the last component of the archive's own path is used: it can't lead elsewhere.
        let name = path.file_name().and_then(|name| name.to_str());
        let wanted = part.binaries().iter().find(|binary| Some(**binary) == name);
        if let (Some(binary), true) = (wanted, entry.header().entry_type().is_file()) {
            let target = into.join(binary);
            let failed = |error| Refusal::Io(target.clone(), error);
            let mut out = File::create(&target).map_err(failed)?;
            io::copy(&mut entry, &mut out).map_err(failed)?;
            drop(out);
            make_executable(&target)?;
        }
    }
    Ok(())
}

fn make_executable(path: &Path) -> Result<(), Refusal> {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755))
        .map_err(|error| Refusal::Io(path.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::local::components::versions::Release;

    #[test]
    fn addresses_are_those_that_the_projects_publish() {
        let downloads = Downloads::new(None);
        let urls: Vec<String> = Release::parse("1.34.0")
            .unwrap()
            .items()
            .iter()
            .flat_map(|item| assets(item, "arm64"))
            .flat_map(|asset| {
                [downloads.url(&asset, &asset.path), downloads.url(&asset, &asset.sums)]
            })
            .collect();
        insta::assert_snapshot!(urls[..8].join("\n"), @r"
        https://github.com/etcd-io/etcd/releases/download/v3.6.4/etcd-v3.6.4-linux-arm64.tar.gz
        https://github.com/etcd-io/etcd/releases/download/v3.6.4/SHA256SUMS
        https://github.com/containerd/containerd/releases/download/v2.1.5/containerd-static-2.1.5-linux-arm64.tar.gz
        https://github.com/containerd/containerd/releases/download/v2.1.5/containerd-static-2.1.5-linux-arm64.tar.gz.sha256sum
        https://github.com/containernetworking/plugins/releases/download/v1.8.0/cni-plugins-linux-arm64-v1.8.0.tgz
        https://github.com/containernetworking/plugins/releases/download/v1.8.0/cni-plugins-linux-arm64-v1.8.0.tgz.sha256
        https://dl.k8s.io/release/v1.34.0/bin/linux/arm64/kube-apiserver
        https://dl.k8s.io/release/v1.34.0/bin/linux/arm64/kube-apiserver.sha256
        ");
        assert_eq!(urls.len(), 16);
    }

    #[test]
    fn checksums_are_read_in_each_form_that_is_published() {
        let sum = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF";
        let lower = Some(sum.to_ascii_lowercase());
        assert_eq!(parse_checksum(sum, "kubelet"), lower);
        assert_eq!(parse_checksum(&format!("{sum}  etcd.tar.gz\n"), "etcd.tar.gz"), lower);
        let many = format!("{}  other\n{sum} *./etcd.tar.gz\n", "0".repeat(64));
        assert_eq!(parse_checksum(&many, "etcd.tar.gz"), lower);
        assert_eq!(parse_checksum(&many, "absent"), None);
        assert_eq!(parse_checksum("<html>Log in to the network</html>", "kubelet"), None);
    }

    /// A name that can't exist and a port that nobody listens on: the reasons that most users
    /// behind a closed network see. Each is found out once.
    #[test]
    fn a_closed_host_is_tried_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut downloads = Downloads::new(Some("http://127.0.0.1:1".into()));
        let item = Release::parse("1.34.0").unwrap().item(Part::Etcd);
        for _ in 0..2 {
            let result =
                downloads.fetch(&item, "amd64", folder.path(), &Stop::default(), &mut |_, _| ());
            let Err(Refusal::Host(reason)) = result else { panic!("{result:?}") };
            assert!(
                reason.starts_with("github.com (mirror http://127.0.0.1:1) can't be reached"),
                "{reason}"
            );
        }
        assert!(downloads.closed(Part::Cni).is_some());
        assert!(downloads.closed(Part::Kubernetes).is_none());
    }
}
