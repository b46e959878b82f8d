//! Builds the probe as a static binary, so that one `cargo build` gives a runner that carries it,
//! and notes which commit is being built.
//!
//! Gives the crate `DRAINWATCH_PROBE` (the binary's path), `DRAINWATCH_COMMIT` (or `unknown`) and
//! `DRAINWATCH_DIRTY` (`true`, `false` or `unknown`).

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What goes into the binaries, and so decides whether a build is that of its commit.
const SOURCES: [&str; 5] = ["src", "probe-image", "build.rs", "Cargo.toml", "Cargo.lock"];

fn main() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rustc-env=DRAINWATCH_PROBE={}", probe().display());
    commit();
}

/// Builds the probe; gives its path.
fn probe() -> PathBuf {
    let var = |name| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let target = var("TARGET");
    // A target folder of its own: the outer cargo holds the lock of the usual one.
    let target_dir = PathBuf::from(var("OUT_DIR")).join("probe");
    let status = Command::new(var("CARGO"))
        .current_dir(var("CARGO_MANIFEST_DIR"))
        .args(["build", "--package", "drainwatch-probe", "--bin", "drainwatch-probe"])
        // The dependencies are the outer build's: they are there, and nothing is fetched.
        .args(["--locked", "--profile", "probe", "--target"])
        .arg(&target)
        .arg("--target-dir")
        .arg(&target_dir)
        .env("CARGO_BUILD_BUILD_DIR", &target_dir)
        // Cargo sets this one for build scripts, and it wins over RUSTFLAGS.
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .env_remove("RUSTFLAGS")
        // Clippy comes in by these; the probe is linted as a member of the workspace.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CLIPPY_ARGS")
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "the probe could not be built");
    target_dir.join(target).join("probe").join("drainwatch-probe")
}

/// Notes the commit, and whether the sources differ from it.
fn commit() {
    let head = git(&["rev-parse", "HEAD"]);
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    let dirty = head.as_ref().and_then(|_| git(&status)).map(|changes| !changes.is_empty());
    println!("cargo::rustc-env=DRAINWATCH_COMMIT={}", head.as_deref().unwrap_or("unknown"));
    println!(
        "cargo::rustc-env=DRAINWATCH_DIRTY={}",
        dirty.map_or("unknown".to_owned(), |dirty| dirty.to_string())
    );
    if head.is_none() {
        return;
    }
    // Whatever moves HEAD writes one of these. Cargo would take a path that does not exist for
    // one that always changes.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
    for name in ["HEAD", "logs/HEAD", "packed-refs", &branch] {
        let path = git(&["rev-parse", "--git-path", name]).unwrap_or_default();
        if !name.is_empty() && Path::new(&path).is_file() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
}

/// What git says, without the end of line; `None` where there is no git or no repository.
fn git(args: &[&str]) -> Option<String> {
    // Without optional locks: refreshing the index would be a change of its own.
    let output = Command::new("git").arg("--no-optional-locks").args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
