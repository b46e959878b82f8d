//! End to end, on real clusters made of this host's processes.
//!
//! Needs Linux, root and the components, which `drainwatch setup` gets where they are missing.
//! Where they can't be had the tests are ignored and the reason is printed; with `CI=true` in the
//! environment that is a failure instead, so that no CI passes by testing nothing.

mod cases;
mod clean;
mod cluster;
mod cluster_up;
mod dials;
mod endings;
mod entries;
mod events;
mod evidence;
mod host;
mod load;
mod resume;
mod rules;
mod tools;
mod trials;
mod triggers;

use std::process::{Command, ExitCode};

use drainwatch::cluster::local::LocalProvider;
use drainwatch::cluster::{ClusterError, Provider};
use libtest_mimic::{Arguments, Trial};

/// The binary under test.
pub const DRAINWATCH: &str = env!("CARGO_BIN_EXE_drainwatch");

/// The provider, with the binary under test in this test's place.
pub fn local() -> LocalProvider {
    LocalProvider { executable: DRAINWATCH.into() }
}

fn main() -> ExitCode {
    // SAFETY: no other thread is there yet.
    unsafe { std::env::set_var(host::MARK, std::process::id().to_string()) };
    let mut arguments = Arguments::from_args();
    // What a test leaves on the host is told by comparing the host before and after it.
    arguments.test_threads = Some(1);
    let unusable = if arguments.list { None } else { unusable() };
    if let Some(reason) = &unusable {
        eprintln!("no local clusters here: {reason}");
        if std::env::var_os("CI").is_some_and(|ci| ci == "true") {
            return ExitCode::FAILURE;
        }
    }
    let tests = cluster::tests().into_iter().chain(cluster_up::tests()).chain(endings::tests());
    let tests = tests.chain(trials::tests()).chain(clean::tests()).chain(events::tests());
    let tests = tests.chain(load::tests()).chain(resume::tests()).chain(triggers::tests());
    let tests = tests.chain(dials::tests()).chain(entries::tests());
    let tests = tests.chain(evidence::tests()).chain(rules::tests());
    let tests =
        tests.map(|test| (test, false)).chain(cases::tests().into_iter().map(|test| (test, true)));
    let tests = tests.map(|((name, test), when_asked)| {
        let run = move || {
            let before = host::Host::read();
            test();
            before.assert_unchanged();
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(when_asked || unusable.is_some())
    });
    libtest_mimic::run(&arguments, tests.collect()).exit_code()
}

/// Why no local cluster can be made here.
fn unusable() -> Option<String> {
    let check = || local().check(&tools::spec());
    let setup = |error: ClusterError| {
        if !nix::unistd::geteuid().is_root() {
            return Err(error);
        }
        eprintln!("{error}\nrunning drainwatch setup");
        let status = Command::new(DRAINWATCH).arg("setup").status();
        if status.is_ok_and(|s| s.success()) { check() } else { Err(error) }
    };
    check().or_else(setup).err().map(|error| error.to_string())
}
