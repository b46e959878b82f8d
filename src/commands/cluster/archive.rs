//! What an image archive holds, read before any node is troubled with it.
//!
//! Takes a file; gives the names of its images, or what is wrong with it for people. Knows the two
//! kinds that containerd imports: that of `docker save`, and an OCI image layout in a tar file.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::Value;

/// More than any index of images is long.
const MAX_BYTES: u64 = 16 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// containerd's own key for a whole name, and the standard's, which may be a tag alone.
const NAME: &str = "io.containerd.image.name";
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// The names of an archive's images as they stand in it, each once; at least one.
///
/// # Errors
/// Text for people, without the file's name.
pub fn names(path: &Path) -> Result<Vec<String>, String> {
    let unreadable = |error: std::io::Error| format!("can't be read: {error}");
    if path.is_dir() {
        return Err(no_archive("it is a folder"));
    }
    // A pipe would be waited for.
    if path.exists() && !path.is_file() {
        return Err(no_archive("it is no regular file"));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    let mut magic = Vec::new();
    file.by_ref().take(4).read_to_end(&mut magic).map_err(unreadable)?;
    file.seek(SeekFrom::Start(0)).map_err(unreadable)?;
    let file = BufReader::new(file);
    let documents = if magic.starts_with(&GZIP) {
        documents(tar::Archive::new(GzDecoder::new(file)).entries())?
    } else if magic.starts_with(&ZSTD) {
        return Err("is compressed with zstd\n  unpack it: zstd -d FILE".into());
    } else {
        documents(tar::Archive::new(file).entries_with_seek())?
    };
    named(documents)
}

/// The documents that tell what images there are.
#[derive(Default)]
struct Documents {
    /// `index.json`
    index: Option<Value>,
    /// `manifest.json`
    docker: Option<Value>,
}

fn documents<R: Read>(entries: std::io::Result<tar::Entries<'_, R>>) -> Result<Documents, String> {
    // The reason may quote the file's bytes.
    let bad = |error: std::io::Error| {
        let why: String = error.to_string().chars().take(60).flat_map(char::escape_debug).collect();
        no_archive(&format!("it is no tar file ({why})"))
    };
    let mut documents = Documents::default();
    for entry in entries.map_err(bad)? {
        let entry = entry.map_err(bad)?;
        let path = entry.path().map_err(bad)?.into_owned();
        let slot = match path.strip_prefix("./").unwrap_or(&path).to_str() {
            Some("index.json") => &mut documents.index,
            Some("manifest.json") => &mut documents.docker,
            _ => continue,
        };
        let document = serde_json::from_reader(entry.take(MAX_BYTES));
        *slot = Some(document.map_err(|e| no_archive(&format!("its {}: {e}", path.display())))?);
    }
    Ok(documents)
}

fn named(documents: Documents) -> Result<Vec<String>, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut names: Vec<String> = match (&documents.index, &documents.docker) {
        // containerd reads the index where there is one.
        (Some(index), _) => {
            let annotations = index["manifests"].as_array().into_iter().flatten();
            let annotations = annotations.map(|entry| &entry["annotations"]);
            let name = |all: &Value| {
                // A bare tag names nothing that a pod could ask for.
                let whole = |name: &String| name.contains(['/', ':', '@']);
                text(&all[NAME]).or_else(|| text(&all[REFERENCE]).filter(whole))
            };
            annotations.filter_map(name).collect()
        }
        (None, Some(docker)) => {
            let images = docker.as_array().into_iter().flatten();
            let tags = images.filter_map(|image| image["RepoTags"].as_array());
            tags.flatten().filter_map(text).collect()
        }
        (None, None) => return Err(no_archive("it has neither an index.json nor a manifest.json")),
    };
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    if names.is_empty() {
        return Err("holds no image with a name that a pod could ask for\n  \
                    save it by name and tag: docker save NAME:TAG > FILE"
            .into());
    }
    Ok(names)
}

fn no_archive(why: &str) -> String {
    format!(
        "is no image archive: {why}\n  \
         an archive of `docker save NAME:TAG` would do, or an OCI image layout in a tar file"
    )
}

/// Whether pods try to pull an image by this name each time unless they are told not to.
pub fn is_pulled_always(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    !last.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;
    use crate::workload::image::{self, Image};

    fn archive(files: &[(&str, &str)]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tar = tar::Builder::new(file.as_file());
        for (name, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap();
        file
    }

    fn of(files: &[(&str, &str)]) -> Result<Vec<String>, String> {
        names(archive(files).path())
    }

    #[test]
    fn names_are_read_from_either_kind_of_archive() {
        let docker =
            json!([{"RepoTags": ["a:1", "h:5000/b:2"]}, {"RepoTags": ["a:1"]}]).to_string();
        assert_eq!(of(&[("x", ""), ("manifest.json", &docker)]).unwrap(), ["a:1", "h:5000/b:2"]);
        let index = json!({"manifests": [
            {"annotations": {NAME: "docker.io/library/c:3", REFERENCE: "3"}},
            {"annotations": {REFERENCE: "quay.io/d:4"}},
            {"annotations": {REFERENCE: "latest"}},
            {},
        ]});
        let index = index.to_string();
        let both = [("./index.json", &*index), ("manifest.json", &*docker)];
        assert_eq!(of(&both).unwrap(), ["docker.io/library/c:3", "quay.io/d:4"]);

        let own = tempfile::NamedTempFile::new().unwrap();
        image::write_archive(own.as_file(), &[Image::probe()]).unwrap();
        assert_eq!(names(own.path()).unwrap(), [image::image_name()]);
        let packed = tempfile::NamedTempFile::new().unwrap();
        let mut gz = flate2::write::GzEncoder::new(packed.as_file(), flate2::Compression::fast());
        gz.write_all(&std::fs::read(own.path()).unwrap()).unwrap();
        gz.finish().unwrap();
        assert_eq!(names(packed.path()).unwrap(), [image::image_name()]);
    }

    #[test]
    fn what_is_no_image_archive_is_told() {
        let garbage = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(garbage.path(), "hello".repeat(1_000)).unwrap();
        let zstd = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(zstd.path(), ZSTD).unwrap();
        let told = [
            names(Path::new("/not/there")),
            names(Path::new("/tmp")),
            names(garbage.path()),
            names(zstd.path()),
            of(&[]),
            of(&[("readme", "")]),
            of(&[("manifest.json", "[")]),
            of(&[("manifest.json", r#"[{"RepoTags": null}]"#)]),
            of(&[("index.json", r#"{"manifests": [{"annotations": {}}]}"#)]),
        ];
        insta::assert_snapshot!(told.map(|result| result.unwrap_err()).join("\n"));
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("image.tar");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(names(&pipe).unwrap_err().contains("no regular file"));
    }

    #[test]
    fn only_latest_is_pulled_always() {
        for name in ["a", "a:latest", "h:5000/a", "h:5000/b/a:latest"] {
            assert!(is_pulled_always(name), "{name}");
        }
        for name in ["a:1", "h:5000/a:1", "a@sha256:0"] {
            assert!(!is_pulled_always(name), "{name}");
        }
    }
}
