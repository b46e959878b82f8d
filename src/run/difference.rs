//! What differs between what measured earlier trials and what would measure the next ones, key by
//! key.
//!
//! Takes builds, plans and environments; gives lines for people. Decides nothing.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use serde::Serialize;
use serde_json::Value;

use crate::plan::{Arm, Plan};
use crate::record::{Tool, Trial};

/// One key whose value is another now than it was earlier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The arm that it is about; `None` where it is about all of them.
    pub arm: Option<String>,
    /// `build`, `configuration` or `environment`.
    pub part: &'static str,
    /// The key, with a dot between levels.
    pub key: String,
    /// Its value earlier.
    pub earlier: String,
    /// Its value now.
    pub now: String,
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { arm, part, key, earlier, now } = self;
        if let Some(arm) = arm {
            write!(f, "{arm}: ")?;
        }
        write!(f, "{part}: {key}: {earlier} earlier, {now} now")
    }
}

/// What two plans have their trials do otherwise. How the arms were asked for (`--set`, `--only`)
/// is no difference where it comes to the same arms.
pub fn plans(earlier: &Plan, now: &Plan) -> Vec<Difference> {
    let mut all = Vec::new();
    let names = |plan: &Plan| plan.arms.iter().map(|arm| arm.name.clone()).collect::<Vec<_>>();
    let (before, after) = (names(earlier), names(now));
    let only_in = |name: &String, (earlier, now): (&str, &str)| Difference {
        arm: Some(name.clone()),
        part: "configuration",
        key: "arm".into(),
        earlier: earlier.into(),
        now: now.into(),
    };
    let gone = before.iter().filter(|name| !after.contains(name));
    all.extend(gone.map(|name| only_in(name, ("in the plan", "not in it"))));
    let new = after.iter().filter(|name| !before.contains(name));
    all.extend(new.map(|name| only_in(name, ("not in the plan", "in it"))));
    if all.is_empty() && before != after {
        all.extend(parts(None, "configuration", "order of arms", &before, &after));
    }
    for arm in &earlier.arms {
        if let Some(same) = now.arms.iter().find(|other| other.name == arm.name) {
            all.extend(parts(Some(&arm.name), "configuration", "", arm, same));
        }
    }
    all.extend(parts(None, "configuration", "matrix", &earlier.matrix, &now.matrix));
    all
}

/// What the trials of a run's folder were measured by that would not measure the next ones.
pub fn trials<'a>(
    trials: impl IntoIterator<Item = &'a Trial>,
    plan: &Plan,
    tool: &Tool,
) -> Vec<Difference> {
    let mut all = Vec::new();
    for trial in trials {
        let name = trial.arm.as_str();
        let found = match plan.arms.iter().find(|arm| arm.name == name) {
            None => vec![Difference {
                arm: Some(name.to_owned()),
                part: "configuration",
                key: "arm".into(),
                earlier: "it has trials".into(),
                now: "not in the plan".into(),
            }],
            Some(arm) => of_trial(trial, arm),
        };
        let found = found.into_iter().chain(parts(None, "build", "", &trial.tool, tool));
        for difference in found {
            if !all.contains(&difference) {
                all.push(difference);
            }
        }
    }
    all
}

fn of_trial(trial: &Trial, arm: &Arm) -> Vec<Difference> {
    let name = Some(trial.arm.as_str());
    let axes: BTreeMap<_, _> = arm.axes.iter().cloned().collect();
    [
        parts(name, "configuration", "config", &trial.config, &arm.config),
        parts(name, "configuration", "scenario", &trial.scenario, &arm.scenario),
        parts(name, "configuration", "axes", &trial.axes, &axes),
    ]
    .concat()
}

/// What two environments of an arm differ in.
pub fn environments(
    arm: &str,
    earlier: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Vec<Difference> {
    parts(Some(arm), "environment", "", earlier, now)
}

/// The keys below `root` whose values differ.
fn parts<T: Serialize + ?Sized>(
    arm: Option<&str>,
    part: &'static str,
    root: &str,
    earlier: &T,
    now: &T,
) -> Vec<Difference> {
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    // What stands in a record always has a JSON form.
    flatten(root, &serde_json::to_value(earlier).unwrap_or_default(), &mut before);
    flatten(root, &serde_json::to_value(now).unwrap_or_default(), &mut after);
    let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let none = || "nothing".to_owned();
    keys.into_iter()
        .filter(|key| before.get(*key) != after.get(*key))
        .map(|key| Difference {
            arm: arm.map(str::to_owned),
            part,
            key: key.clone(),
            earlier: before.get(key).cloned().unwrap_or_else(none),
            now: after.get(key).cloned().unwrap_or_else(none),
        })
        .collect()
}

fn flatten(key: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let below = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                flatten(&below, value, into);
            }
        }
        Value::Null => {}
        Value::String(text) => drop(into.insert(key.to_owned(), text.clone())),
        other => drop(into.insert(key.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stories;
    use std::path::Path;
    use std::time::Duration;

    fn paper() -> Plan {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("matrices");
        crate::plan::load(&folder.join("paper.toml"), &[], &[]).unwrap()
    }

    fn lines(differences: &[Difference]) -> String {
        differences.iter().map(|difference| format!("{difference}\n")).collect()
    }

    #[test]
    fn plans_differ_key_by_key() {
        let (earlier, mut now) = (paper(), paper());
        now.overrides = vec!["repeats=5".into()];
        assert_eq!(plans(&earlier, &now), [], "it comes to the same arms");
        now.arms.remove(0);
        now.arms[0].config.settle = Duration::from_millis(1500);
        now.arms[0].config.drain_window = None;
        now.arms[1].cluster.sysctls.insert("net.ipv4.icmp_ratelimit".into(), "0".into());
        insta::assert_snapshot!(lines(&plans(&earlier, &now)), @r#"
        exit-delete: configuration: arm: in the plan earlier, not in it now
        drain-delete: configuration: config.drain_window_ms: 25000 earlier, nothing now
        drain-delete: configuration: config.settle_ms: 10000 earlier, 1500 now
        ignore-delete: configuration: cluster.sysctls.net.ipv4.icmp_ratelimit: nothing earlier, 0 now
        "#);
    }

    #[test]
    fn what_trials_share_is_told_once() {
        let (mut first, second) = (stories::exit(1), stories::exit(2));
        let mut plan = paper();
        for arm in &mut plan.arms {
            arm.config = first.config.clone();
        }
        let tool = first.tool.clone();
        assert_eq!(trials(&[first.clone(), second.clone()], &plan, &tool), []);
        let now = Tool { commit: "0123456789".into(), dirty: None, ..tool };
        first.config.flows.udp = 7;
        let mut other = stories::exit(1);
        other.arm = "of-another-run".into();
        insta::assert_snapshot!(lines(&trials(&[first, second, other], &plan, &now)), @r#"
        exit-delete: configuration: config.flows.udp: 7 earlier, 4 now
        build: commit: 0123456789abcdef earlier, 0123456789 now
        build: dirty: false earlier, nothing now
        of-another-run: configuration: arm: it has trials earlier, not in the plan now
        "#);
    }

    #[test]
    fn environments_differ_in_values_and_in_keys() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
        };
        let earlier = map(&[("node/node-1/kernel", "6.1"), ("server", "v1.34.0"), ("dns", "none")]);
        let now = map(&[("node/node-1/kernel", "6.18"), ("server", "v1.34.0"), ("nodes", "2")]);
        insta::assert_snapshot!(lines(&environments("exit", &earlier, &now)), @r#"
        exit: environment: dns: none earlier, nothing now
        exit: environment: node/node-1/kernel: 6.1 earlier, 6.18 now
        exit: environment: nodes: nothing earlier, 2 now
        "#);
    }
}
