//! The probe's image: the binary that the build embedded, as an archive that containerd, kind and
//! Docker load.
//!
//! Takes the binary from the build and writes an archive: an OCI image layout, and beside it the
//! `manifest.json` that Docker reads. The same binary gives the same bytes. Knows nothing of
//! clusters or of who loads it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::digest::sha256;

/// The probe: a static binary for the runner's own architecture.
pub const PROBE: &[u8] = include_bytes!(env!("DRAINWATCH_PROBE"));

/// Where the probe lies in its image.
const PATH: &str = "drainwatch-probe";
/// Whom it runs as: nobody in particular, and not root.
const USER: &str = "65532:65532";

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// SHA-256 of [`PROBE`], in hexadecimal.
pub fn probe_sha256() -> String {
    sha256(PROBE)
}

/// The image's name. Its tag comes from the binary, so that it can't name another build.
pub fn image_name() -> String {
    format!("drainwatch.local/probe:{}", &probe_sha256()[..12])
}

/// An image of the probe's binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// `host/repository:tag`
    pub name: String,
    /// The arguments that it runs with unless a pod gives others. Images that differ in nothing
    /// are one image to a container runtime, whatever their names.
    pub arguments: Vec<&'static str>,
}

impl Image {
    /// The probe's own, under [`image_name`].
    pub fn probe() -> Self {
        Self { name: image_name(), arguments: Vec::new() }
    }

    /// One that only waits, for pods' sandboxes.
    pub fn pause(name: &str) -> Self {
        Self { name: name.to_owned(), arguments: vec!["pause"] }
    }
}

/// Images as one archive, for as long as it lives. It has no name: a process that is killed leaves none
/// behind.
#[derive(Debug)]
pub struct Archive(std::fs::File);

impl Archive {
    /// Writes it.
    ///
    /// # Errors
    /// There is no room for temporary files.
    pub fn of(images: &[Image]) -> io::Result<Self> {
        let file = tempfile::tempfile()?;
        write_archive(&file, images)?;
        Ok(Self(file))
    }

    /// Where others find it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }
}

/// Writes the images as one archive.
///
/// # Errors
/// `out` could not be written.
pub fn write_archive(out: impl Write, images: &[Image]) -> io::Result<()> {
    let mut blobs = Blobs::default();

    let mut layer = tar::Builder::new(Vec::new());
    append(&mut layer, PATH, 0o555, PROBE)?;
    let layer = layer.into_inner()?;
    // The layer is not compressed, so the digest of its content is the blob's.
    let layer = blobs.put(LAYER, layer);

    let platform = json!({"architecture": architecture(), "os": "linux"});
    let mut entries = Vec::new();
    let mut docker = Vec::new();
    for Image { name, arguments } in images {
        let config = blobs.put_json(
            CONFIG,
            &json!({
                "architecture": platform["architecture"], "os": platform["os"],
                "config": {
                    "Entrypoint": [format!("/{PATH}")], "Cmd": arguments, "User": USER,
                },
                "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
                "history": [{"created_by": "drainwatch"}],
            }),
        );
        docker.push(json!({
            "Config": blob_path(&config), "RepoTags": [name], "Layers": [blob_path(&layer)],
        }));
        let layers = [&layer];
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        });
        let mut entry = blobs.put_json(MANIFEST, &manifest);
        entry["platform"] = platform.clone();
        // containerd takes the name from its own annotation, others the tag from the standard one.
        entry["annotations"] = json!({
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": tag(name),
        });
        entries.push(entry);
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});

    let mut archive = tar::Builder::new(out);
    append(&mut archive, "oci-layout", 0o444, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    append(&mut archive, "index.json", 0o444, index.to_string().as_bytes())?;
    append(&mut archive, "manifest.json", 0o444, Value::from(docker).to_string().as_bytes())?;
    for (path, data) in &blobs.0 {
        append(&mut archive, path, 0o444, data)?;
    }
    archive.into_inner()?.flush()
}

/// Contents by their paths in the layout.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Keeps a blob; gives its descriptor.
    fn put(&mut self, media_type: &str, data: Vec<u8>) -> Value {
        let descriptor = json!({
            "mediaType": media_type, "digest": format!("sha256:{}", sha256(&data)),
            "size": data.len(),
        });
        self.0.insert(blob_path(&descriptor), data);
        descriptor
    }

    fn put_json(&mut self, media_type: &str, value: &Value) -> Value {
        self.put(media_type, value.to_string().into_bytes())
    }
}

fn blob_path(descriptor: &Value) -> String {
    format!("blobs/{}", descriptor["digest"].as_str().unwrap_or_default().replace(':', "/"))
}

/// The tag of `host:port/repository:tag`.
fn tag(name: &str) -> &str {
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split_once(':').map_or("latest", |(_, tag)| tag)
}

/// Appends a file of root's, of the year 1970.
fn append(
    tar: &mut tar::Builder<impl Write>,
    path: &str,
    mode: u32,
    data: &[u8],
) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(data.len() as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    tar.append_data(&mut header, path, data)
}

/// The probe's architecture, as images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        same => same, // arm, riscv64, s390x
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn archive(images: &[Image]) -> Vec<u8> {
        let mut out = Vec::new();
        write_archive(&mut out, images).unwrap();
        out
    }

    fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), data);
        }
        files
    }

    /// The program headers' types, read from the ELF file by hand (64 bit, little endian).
    fn program_headers(elf: &[u8]) -> Vec<u32> {
        let number = |at: usize, n: usize| {
            elf[at..at + n].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "64 bit, little endian");
        let (table, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
        (0..count).map(|i| number(table + i * size, 4) as u32).collect()
    }

    #[test]
    fn the_embedded_probe_needs_no_loader() {
        const PT_LOAD: u32 = 1;
        const PT_INTERP: u32 = 3;
        let types = program_headers(PROBE);
        assert!(types.contains(&PT_LOAD));
        assert!(!types.contains(&PT_INTERP), "the probe is dynamic: it dies in an empty image");
    }

    #[test]
    fn an_archive_is_the_same_whenever_it_is_written() {
        assert_eq!(archive(&[Image::probe()]), archive(&[Image::probe()]));
    }

    #[test]
    fn every_blob_has_its_digest_for_a_name_and_all_links_lead_to_one() {
        let files = files(&archive(&[Image::probe(), Image::pause("drainwatch.local/pause:1")]));
        let json = |path: &str| serde_json::from_slice::<Value>(&files[path]).unwrap();
        for (path, data) in files.iter().filter(|(path, _)| path.starts_with("blobs/")) {
            assert_eq!(*path, format!("blobs/sha256/{}", sha256(data)));
        }

        let index = json("index.json");
        assert_eq!(index["manifests"].as_array().unwrap().len(), 2);
        for entry in index["manifests"].as_array().unwrap() {
            let manifest = json(&blob_path(entry));
            assert_eq!(entry["size"], files[&blob_path(entry)].len());
            let config = json(&blob_path(&manifest["config"]));
            assert_eq!(config["config"]["User"], "65532:65532");
            assert_eq!(config["config"]["Entrypoint"], json!(["/drainwatch-probe"]));
            let layer = &files[&blob_path(&manifest["layers"][0])];
            assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256(layer)));
            assert_eq!(self::files(layer), BTreeMap::from([(PATH.to_owned(), PROBE.to_vec())]));
        }
        let configs = |i: usize| json(&blob_path(&index["manifests"][i]))["config"].clone();
        assert_ne!(configs(0), configs(1), "two names of one image would hide the probe's");
        assert_eq!(json(&blob_path(&configs(1)))["config"]["Cmd"], json!(["pause"]));
        let docker = json("manifest.json");
        assert_eq!(docker[0]["RepoTags"], json!([image_name()]));
        assert_eq!(docker[1]["RepoTags"], json!(["drainwatch.local/pause:1"]));
        assert!(files.contains_key(docker[0]["Config"].as_str().unwrap()));
        assert!(files.contains_key(docker[0]["Layers"][0].as_str().unwrap()));
    }

    #[test]
    fn the_probe_belongs_to_root_and_anyone_may_run_it() {
        let files = files(&archive(&[Image::probe()]));
        let layer = files.values().max_by_key(|data| data.len()).unwrap();
        let mut layer = tar::Archive::new(&layer[..]);
        let entry = layer.entries().unwrap().next().unwrap().unwrap();
        let header = entry.header();
        assert_eq!(header.mode().unwrap(), 0o555);
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        assert_eq!(header.mtime().unwrap(), 0);
    }

    #[test]
    fn a_registrys_port_is_no_tag() {
        assert_eq!(tag("localhost:5000/probe:1"), "1");
        assert_eq!(tag("localhost:5000/probe"), "latest");
    }
}
