//! `drainwatch check` and `drainwatch plan`, as whole commands: what people read when their files
//! are right, and when they are not.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use tempfile::TempDir;

/// A folder with `scenarios/` and `matrices/` to write into.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("scenarios")).unwrap();
        fs::create_dir(folder.path().join("matrices")).unwrap();
        Self(folder)
    }

    fn with(self, file: &str, text: impl AsRef<[u8]>) -> Self {
        fs::write(self.0.path().join(file), text).unwrap();
        self
    }

    /// Exit code, standard output and standard error.
    fn run(&self, args: &[&str]) -> (i32, String, String) {
        run(self.0.path(), args)
    }

    /// The errors of `check`, which has nothing else to say. `plan` and `apply` say the same, and
    /// start nothing.
    fn errors(&self, file: &str) -> String {
        let (code, out, err) = self.run(&["check", file]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        let before = self.listed();
        for command in [&["plan", file][..], &["apply", file], &["apply", "--setup", file]] {
            assert_eq!(self.run(command), (2, String::new(), err.clone()), "{command:?}");
        }
        assert_eq!(self.listed(), before);
        let one = |error: &&str| error.starts_with("error: ");
        let mut told: Vec<&str> = err.split("\n\n").filter(one).collect();
        let count = told.len();
        told.sort_unstable();
        told.dedup();
        assert_eq!(told.len(), count, "told twice: {err}");
        assert!(!err.contains("panicked"), "{err}");
        err
    }

    /// What stands in it, the folders of `apply`'s results among it if there were any.
    fn listed(&self) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = Vec::new();
        let mut folders = vec![self.0.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path.clone());
                }
                found.push(path);
            }
        }
        found.sort();
        found
    }
}

fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("drainwatch")
        .unwrap()
        .current_dir(folder)
        .args(args)
        .timeout(std::time::Duration::from_secs(30))
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// One scenario, under `scenarios/a.toml`.
fn scenario(text: impl AsRef<[u8]>) -> Folder {
    Folder::new().with("scenarios/a.toml", text)
}

#[test]
fn every_shipped_file_is_right() {
    let mut files = Vec::new();
    for folder in ["scenarios", "matrices", "matrices/cases"] {
        let names =
            fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        files.extend(names.filter(|name| name != "cases").map(|name| format!("{folder}/{name}")));
    }
    files.sort();
    let mut args = vec!["check"];
    args.extend(files.iter().map(String::as_str));
    let (code, out, err) = run(&root(), &args);
    assert_eq!((code, err.as_str()), (0, ""));
    insta::assert_snapshot!(out);
}

#[test]
fn the_plan_of_the_paper() {
    let (code, out, err) = run(&root(), &["plan", "matrices/paper.toml"]);
    assert_eq!((code, err.as_str()), (0, ""));
    insta::assert_snapshot!(out);
}

#[test]
fn a_plan_with_axes_and_overrides() {
    let args =
        ["plan", "matrices/readiness.toml", "--set", "repeats=1", "--set", "grace_period=20s"];
    let (code, out, err) = run(&root(), &args);
    assert_eq!((code, err.as_str()), (0, ""));
    insta::assert_snapshot!(out);
}

#[test]
fn a_plan_of_one_arm_of_many() {
    let args = ["plan", "matrices/paper.toml", "--only", "exit-delete", "--set", "repeats=2"];
    let (code, out, err) = run(&root(), &args);
    assert_eq!((code, err.as_str()), (0, ""));
    insta::assert_snapshot!(out);
}

/// What is picked is all that has to make sense: readiness means nothing to an app that exits.
#[test]
fn an_override_need_not_fit_arms_that_are_not_picked() {
    let args = ["plan", "matrices/paper.toml", "--set", "readiness=pass"];
    assert_eq!(run(&root(), &args).0, 2);
    let picked = [&args[..], &["--only", "drain-delete", "--only", "drain-evict"]].concat();
    assert_eq!(run(&root(), &picked).0, 0);
}

#[test]
fn three_lines_are_a_scenario() {
    let folder = scenario("sigterm = \"drain\"\nrepeats = 3\ntrigger = \"evict\"\n");
    assert_eq!(
        folder.run(&["check", "scenarios/a.toml"]),
        (0, "ok  scenarios/a.toml: scenario, 3 trials\n".into(), String::new())
    );
}

#[test]
fn a_matrix_wins_over_the_cluster_in_a_scenario() {
    let folder = scenario("sigterm = \"exit\"\n[cluster]\nnodes = 3\nproxy_mode = \"nftables\"\n")
        .with("matrices/m.toml", "scenarios = [\"a\"]\n[cluster]\nnodes = 4\n");
    let cluster = |args: &[&str]| {
        let (code, out, err) = folder.run(args);
        assert_eq!((code, err.as_str()), (0, ""));
        out.lines().find(|line| line.starts_with("cluster")).unwrap().to_string()
    };
    insta::assert_snapshot!(
        cluster(&["plan", "scenarios/a.toml"]),
        @"cluster  Kubernetes 1.34.0, 3 nodes, nftables (provider: auto)"
    );
    insta::assert_snapshot!(
        cluster(&["plan", "matrices/m.toml"]),
        @"cluster  Kubernetes 1.34.0, 4 nodes, nftables (provider: auto)"
    );
    insta::assert_snapshot!(
        cluster(&["plan", "matrices/m.toml", "--set", "cluster.nodes=5"]),
        @"cluster  Kubernetes 1.34.0, 5 nodes, nftables (provider: auto)"
    );
}

#[test]
fn a_matrix_may_name_scenarios_by_path_and_from_its_own_folder() {
    let folder = scenario("sigterm = \"exit\"")
        .with("matrices/b.toml", "sigterm = \"drain\"")
        .with("matrices/m.toml", "scenarios = [\"a\", \"b.toml\"]");
    let ok = |path: &str| (0, format!("ok  {path}: matrix of 2 arms, 10 trials\n"), String::new());
    assert_eq!(folder.run(&["check", "matrices/m.toml"]), ok("matrices/m.toml"));
    let inside = folder.0.path().join("matrices");
    assert_eq!(run(&inside, &["check", "m.toml"]), ok("m.toml"));
    let absolute = inside.join("m.toml").display().to_string();
    assert_eq!(folder.run(&["check", &absolute]), ok(&absolute));
}

/// The right files are told even if others are wrong.
#[test]
fn check_tells_of_each_file() {
    let folder = scenario("sigterm = \"exit\"").with("scenarios/b.toml", "sigterm = \"exti\"");
    let (code, out, err) =
        folder.run(&["check", "scenarios/b.toml", "scenarios/a.toml", "none.toml"]);
    assert_eq!(code, 2);
    assert_eq!(out, "ok  scenarios/a.toml: scenario, 5 trials\n");
    insta::assert_snapshot!(err);
}

#[test]
fn three_errors_at_once() {
    let folder = scenario(
        "# A comment\nsigterm = \"drain\"\ndrain_windw = \"25s\"\ngrace_period = 30\n\n[flows]\ntcp = \"ten\"\n",
    );
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn unknown_key() {
    let folder = scenario("sigterm = \"exit\"\n[pod]\nreadines_period = \"1s\"\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn a_key_below_the_wrong_table() {
    let folder =
        scenario("sigterm = \"exit\"\n[flows]\ntcp = 3\nrepeats = 3\nproxy_mode = \"ipvs\"\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn wrong_type() {
    let folder = scenario("sigterm = \"exit\"\nrepeats = \"5\"\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn wrong_unit() {
    let folder = scenario("sigterm = \"exit\"\ngrace_period = \"30 sceonds\"\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn drain_window_without_drain() {
    let folder = scenario("sigterm = \"exit\"\ndrain_window = \"25s\"\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn drain_window_not_below_the_grace_period() {
    let folder = scenario("sigterm = \"drain\"\ndrain_window = \"20s\"\ngrace_period = \"20s\"\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn huge_numbers() {
    let folder = scenario(
        "sigterm = \"exit\"\nrepeats = 4294967296\nsettle = \"1000000000 years\"\n\
         flows.tcp = 99999999999999999999999999999999999999999\n",
    );
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn broken_syntax() {
    let folder = scenario("sigterm = drain\nsettle = \"10s\nrepeats = 5\nrepeats = 6\n[flows\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn not_utf8() {
    let folder = scenario(b"sigterm = \"exit\"\ndescription = \"caf\xe9\"\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn a_folder() {
    insta::assert_snapshot!(Folder::new().errors("scenarios"));
}

#[test]
fn a_missing_file() {
    insta::assert_snapshot!(Folder::new().errors("scenarios/none.toml"));
}

#[test]
fn a_file_that_is_there_under_another_name() {
    let folder = scenario("sigterm = \"exit\"").with("matrices/drain.toml", "");
    let errors =
        ["scenarios/a", "matrices/drian.toml", "matrices/drian", "none/drian.toml", "a.toml/b"]
            .map(|file| folder.errors(file));
    insta::assert_snapshot!(errors.concat());
}

#[test]
fn ten_megabytes() {
    let folder = scenario("sigterm = \"exit\"\n".repeat(10_000_000 / 17));
    insta::assert_snapshot!(folder.errors("scenarios/a.toml"));
}

#[test]
fn an_empty_file() {
    insta::assert_snapshot!(scenario("").errors("scenarios/a.toml"));
}

#[test]
fn a_missing_scenario() {
    let folder = Folder::new().with("scenarios/drain-delete.toml", "sigterm = \"drain\"").with(
        "matrices/m.toml",
        "scenarios = [\n  \"drain-delete\",\n  \"drain-delet\",\n  \"../scenarios/drain-delte.toml\",\n]\n",
    );
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn two_arms_of_one_name() {
    let folder = scenario("sigterm = \"exit\"")
        .with("matrices/A.toml", "sigterm = \"exit\"")
        .with("matrices/m.toml", "scenarios = [\"a\", \"A.toml\", \"a\"]\n");
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn two_values_of_one_name() {
    let folder = scenario("sigterm = \"exit\"").with(
        "matrices/m.toml",
        "scenarios = [\"a\"]\n[axes]\n\"cluster.sysctls.net.ipv4.tcp_rmem\" = [\"1 2\", \"1-2\"]\n",
    );
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn empty_axes() {
    let folder = scenario("sigterm = \"exit\"")
        .with("matrices/m.toml", "scenarios = [\"a\"]\n[axes]\n")
        .with("matrices/n.toml", "scenarios = [\"a\"]\n[axes]\ntrigger = []\n");
    insta::assert_snapshot!(folder.errors("matrices/m.toml") + &folder.errors("matrices/n.toml"));
}

#[test]
fn wrong_axes() {
    let folder = scenario("sigterm = \"exit\"").with(
        "matrices/m.toml",
        "scenarios = [\"a\"]\nsigterm = \"exit\"\n[axes]\nproxy_mode = [\"ipvs\"]\nflows = [1]\n\
         repeats = 3\nsettle = [\"1s\", \"1000ms\", 2]\ntriger = [\"evict\"]\n",
    );
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn an_axis_that_contradicts_its_scenario() {
    let folder = scenario("sigterm = \"exit\"").with("scenarios/b.toml", "sigterm = \"drain\"").with(
        "matrices/m.toml",
        "scenarios = [\"a\", \"b\"]\n[axes]\nreadiness = [\"fail\", \"pass\"]\ngrace_period = [\"30s\", \"3s\"]\n",
    );
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

/// Errors of the matrix come first, then those of its scenarios, each in its file's order.
#[test]
fn errors_in_several_files() {
    let folder = scenario("sigterm = \"exti\"\nrepeats = 0\n")
        .with("matrices/m.toml", "scenarios = [\"a\"]\n[cluster]\nproxy_mode = \"iptable\"\n");
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn an_axis_may_give_what_the_scenario_lacks() {
    let folder = scenario("repeats = 1")
        .with("matrices/m.toml", "scenarios = [\"a\"]\naxes.sigterm = [\"exit\", \"drain\"]\n");
    assert_eq!(
        folder.run(&["check", "matrices/m.toml"]).1,
        "ok  matrices/m.toml: matrix of 2 arms, 2 trials\n"
    );
    assert!(folder.errors("scenarios/a.toml").contains("`sigterm` is missing"));
}

#[test]
fn too_many_arms() {
    let values: Vec<String> = (1..=100).map(|n| n.to_string()).collect();
    let values = values.join(", ");
    let folder = scenario("sigterm = \"exit\"").with(
        "matrices/m.toml",
        format!(
            "scenarios = [\"a\"]\n[axes]\n\"flows.tcp\" = [{values}]\n\"flows.udp\" = [{values}]\n"
        ),
    );
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn wrong_flags() {
    let args = [
        "plan",
        "matrices/readiness.toml",
        "--set",
        "repeats=x",
        "--set",
        "readiness=pass",
        "--set",
        "cluster.provder=kind",
        "--set",
        "settle",
        "--set",
        "grace_period=4s",
    ];
    let (code, out, err) = run(&root(), &args);
    assert_eq!((code, out.as_str()), (2, ""));
    insta::assert_snapshot!(err);
}

#[test]
fn an_unknown_arm() {
    let args = ["plan", "matrices/paper.toml", "--only", "drain-delet", "--only", "exit-delete"];
    let (code, out, err) = run(&root(), &args);
    assert_eq!((code, out.as_str()), (2, ""));
    insta::assert_snapshot!(err);
}

#[test]
fn a_file_whose_name_is_no_folders() {
    let folder = Folder::new().with("scenarios/my drain.toml", "sigterm = \"drain\"");
    insta::assert_snapshot!(folder.errors("scenarios/my drain.toml"));
}

/// To open a pipe is to wait for its writer.
#[test]
fn what_is_no_regular_file_is_not_opened() {
    let folder = scenario("sigterm = \"exit\"")
        .with("matrices/m.toml", "scenarios = [\"../scenarios/pipe.toml\"]");
    let pipe = folder.0.path().join("scenarios/pipe.toml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for file in ["scenarios/pipe.toml", "matrices/m.toml"] {
        assert!(folder.errors(file).contains("scenarios/pipe.toml is not a regular file"));
    }
    assert!(folder.errors("/dev/zero").contains("/dev/zero is not a regular file"));
    assert!(folder.errors("/proc/kmsg").contains("neither a scenario nor a matrix"));
}

/// Whatever fits a file is told at once.
#[test]
fn files_of_nothing_but_errors_are_told_in_time() {
    let many = |n: usize, line: &str| -> String {
        (0..n).map(|i| line.replace('N', &i.to_string())).collect()
    };
    let texts: [String; 8] = [
        format!("scenarios = [\"a\"]\n{}", many(6_000, "aN = 1\n")),
        "@\n".repeat(32_000),
        "@".repeat(64_000),
        "\n".repeat(65_000) + "@",
        format!("scenarios = [{}]", many(6_000, "\"bN\", ")),
        format!("scenarios = [\"a\"]\n[axes]\nrepeats = [{}]", many(8_000, "N, ")),
        format!("scenarios = [\"a\"]\n[axes]\n{}", many(2_000, "cluster.sysctls.net.aN=[1]\n")),
        // As many arms as there may be, each of which would keep all sysctls.
        format!(
            "scenarios = [\"a\"]\n[axes]\nrepeats = [{}]\n[cluster.sysctls]\n{}",
            many(999, "1N, "),
            many(4_000, "net.aN=1\n")
        ),
    ];
    let started = std::time::Instant::now();
    for text in texts {
        let folder = scenario("sigterm = \"exit\"").with("matrices/m.toml", text);
        let (code, _, err) = folder.run(&["check", "matrices/m.toml"]);
        assert!(code == 2 && !err.contains("KiB"), "{err}");
    }
    // Against work that grows with the square: each of them takes tenths of a second.
    assert!(started.elapsed() < std::time::Duration::from_secs(60));
}

#[test]
fn of_many_scenarios_of_errors_enough_are_told() {
    let names: Vec<String> = (0..500).map(|n| format!("\"s{n}\"")).collect();
    let text: String = (0..600).map(|n| format!("k{n} = 1\n")).collect();
    let mut folder = scenario("sigterm = \"exit\"")
        .with("matrices/m.toml", format!("scenarios = [{}]", names.join(", ")));
    for n in 0..500 {
        folder =
            folder.with(&format!("scenarios/s{n}.toml"), format!("sigterm = \"exit\"\n{text}"));
    }
    let errors = folder.errors("matrices/m.toml");
    assert!(
        errors.starts_with("error: scenarios from here on were not read: 1200 errors"),
        "{errors}"
    );
    assert!(errors.ends_with("\n\n1201 errors, of which the last 1001 are left out\n"));
}

/// A name of a file or a value may hold what a terminal would act on.
#[test]
fn nothing_that_is_named_moves_the_cursor() {
    let folder = scenario("sigterm = \"exit\"").with(
        "scenarios/b.toml",
        "sigterm = \"exit\"\ndescription = 1 # \u{1b}[2J\n'\u{9b}31m' = \"\u{202e}\"\n",
    );
    let red = "x\u{1b}[31m\u{9b}";
    let set = format!("description={red}");
    let sysctl = "cluster.sysctls.\"net.x\"=1\u{202e}2";
    for args in [
        &["check", red, "scenarios/b.toml"][..],
        &["plan", red],
        &["plan", "scenarios/a.toml", "--set", &set, "--set", sysctl],
        &["plan", "scenarios/a.toml", "--set", red, "--only", red],
        &["apply", red],
        &["apply", "scenarios/a.toml", "--output", "scenarios/b.toml/\u{1b}[31m"],
        &["summarize", red],
        &["schema", "--output", "scenarios/b.toml/\u{1b}[31m"],
    ] {
        let (code, out, err) = folder.run(args);
        let moves = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!out.contains(moves) && !err.contains(moves), "{args:?}: {code} {out:?} {err:?}");
    }
}

#[test]
fn too_many_sysctls_and_axes() {
    let many = |n: usize, line: &str| -> String {
        (0..n).map(|i| line.replace('N', &i.to_string())).collect()
    };
    let folder =
        scenario(format!("sigterm = \"exit\"\n[cluster.sysctls]\n{}", many(257, "net.aN = 1\n")))
            .with(
                "matrices/m.toml",
                format!(
                    "scenarios = [\"a\"]\n[axes]\n{}",
                    many(51, "cluster.sysctls.net.bN = [1]\n")
                ),
            );
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn wrong_values_of_axes_are_told_by_themselves() {
    let folder = scenario("sigterm = \"exit\"").with(
        "matrices/m.toml",
        "scenarios = [\"a\"]\n[axes]\n\"cluster.sysctls.kernel.x\" = [0, 1]\ntrigger = [\"a b\", \"a-b\"]\n",
    );
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn what_is_not_supported() {
    let folder = scenario(
        "sigterm = \"exit\"\nterminationGracePeriodSeconds = 30\nreplicas = 3\n\
         [flows]\nenter_by = \"worker-9\"\n[cluster]\nkubernetes = \"9.9.9\"\n[axes]\nrepeats = [1]\n",
    )
    .with("scenarios/b.toml", "sigterm = \"exit\"\ncluster.provider = \"kind\"\n");
    insta::assert_snapshot!(folder.errors("scenarios/a.toml") + &folder.errors("scenarios/b.toml"));
}

#[test]
fn a_scenario_that_cannot_be_found() {
    let folder = scenario("sigterm = \"exit\"").with("matrices/exit.toml", "sigterm = \"exit\"").with(
        "matrices/m.toml",
        "scenarios = [\n  \"a.toml\",\n  \"./a\",\n  \"b/a\",\n  \"nope\",\n  \"none/here.toml\",\n  \"exti.toml\",\n]\n",
    );
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

/// It is there, so nothing else was meant.
#[test]
fn a_scenario_that_cannot_be_read() {
    let folder = scenario("#".repeat(70_000)).with("matrices/m.toml", "scenarios = [\"a\", \"b\"]");
    fs::create_dir(folder.0.path().join("scenarios/b.toml")).unwrap();
    insta::assert_snapshot!(folder.errors("matrices/m.toml"));
}

#[test]
fn a_scenario_of_two_matrices_is_told_once() {
    let folder = scenario("sigterm = \"exti\"\nrepeats = 0\n")
        .with("matrices/m.toml", "scenarios = [\"a\"]")
        .with("matrices/n.toml", "scenarios = [\"a\"]\nx = 1");
    let (code, out, err) = folder.run(&["check", "matrices/m.toml", "matrices/n.toml"]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert_eq!(err.matches("cannot be `exti`").count(), 1, "{err}");
    assert!(err.ends_with("\n\n3 errors\n"), "{err}");
}

#[test]
fn a_flag_that_fits_some_arms() {
    let (code, _, err) = run(&root(), &["plan", "matrices/paper.toml", "--set", "readiness=pass"]);
    assert_eq!(code, 2);
    insta::assert_snapshot!(err);
}
