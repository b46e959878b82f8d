//! Whether the hosts that components come from can be reached: one short request each.

use std::process::Command;
use std::time::Duration;

use crate::cluster::local::components::MIRROR_VARIABLE;
use crate::cluster::machine::Check;

/// How long finding, reaching and asking a host may take, each.
const PATIENCE: Duration = Duration::from_millis(2500);
/// The release hosts, each with a path that they have.
const HOSTS: [(&str, &str); 2] =
    [("dl.k8s.io", "release/stable.txt"), ("github.com", "etcd-io/etcd/releases")];
const MODULE: &str = "k8s.io/kubernetes/@v/list";

/// All points.
pub fn all() -> Vec<Check> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let mirror = variable(MIRROR_VARIABLE);
    let mut checks: Vec<Check> = HOSTS
        .iter()
        .map(|(host, path)| match &mirror {
            Some(mirror) => ask(host, &format!("{}/{host}/{path}", mirror.trim_end_matches('/'))),
            None => ask(host, &format!("https://{host}/{path}")),
        })
        .collect();
    checks.push(match module_proxies() {
        None => {
            Check::warn(GO, "`go` does not tell which", "install Go, if modules are to be built")
        }
        Some(proxies) => match proxies.split([',', '|']).next().unwrap_or_default() {
            first @ ("" | "direct" | "off") => Check::warn(
                GO,
                format!("GOPROXY begins with {first:?}: not asked"),
                "unset GOPROXY",
            ),
            proxy => ask(GO, &format!("{}/{MODULE}", proxy.trim_end_matches('/'))),
        },
    });
    checks
}

const GO: &str = "Go module proxy";

/// Those that Go would ask, its own settings and defaults included.
fn module_proxies() -> Option<String> {
    let told = Command::new("go").args(["env", "GOPROXY"]).output().ok()?;
    let told = told.status.success().then_some(told.stdout)?;
    Some(String::from_utf8(told).ok()?.trim().to_owned())
}

fn ask(name: &'static str, url: &str) -> Check {
    let agent = ureq::Agent::config_builder()
        .timeout_resolve(Some(PATIENCE))
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .build()
        .new_agent();
    let shown = without_secret(url);
    match agent.head(url).call() {
        Ok(_) => Check::ok(name, format!("answers ({shown})")),
        Err(error) => Check::warn(
            name,
            format!("can't be used: {} ({shown})", without_secret(&error.to_string())),
            "setup takes the other source, or a folder: drainwatch setup --from DIR",
        ),
    }
}

/// An address without the user and password that may stand in it.
fn without_secret(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_addresses_are_not_shown() {
        assert_eq!(
            without_secret("https://me:secret@proxy.example/x@v"),
            "https://proxy.example/x@v"
        );
        assert_eq!(
            without_secret("https://proxy.example/x/@v/list"),
            "https://proxy.example/x/@v/list"
        );
        assert_eq!(without_secret("io: refused"), "io: refused");
    }
}
