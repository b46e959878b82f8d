//! What clusters made with kind will need: a container engine that answers, kind, kubectl.

use crate::cluster::machine::{Answer, Check, Machine};

/// All points.
pub fn all(machine: &dyn Machine) -> Vec<Check> {
    vec![
        docker(machine),
        tool(
            machine,
            "kind",
            &["version"],
            "https://kind.sigs.k8s.io/docs/user/quick-start/#installation",
        ),
        tool(
            machine,
            "kubectl",
            &["version", "--client"],
            "https://kubernetes.io/docs/tasks/tools/#kubectl",
        ),
    ]
}

fn docker(machine: &dyn Machine) -> Check {
    const NAME: &str = "docker";
    // The engine's version: the client's own says nothing of whether there is an engine.
    match machine.ask(NAME, &["version", "--format", "{{.Server.Version}}"]) {
        Answer::Said(version) if !version.is_empty() => {
            Check::ok(NAME, format!("the engine answers: {version}"))
        }
        Answer::Said(_) => Check::warn(NAME, "the engine tells no version", "sudo docker version"),
        Answer::Failed(why) => Check::warn(
            NAME,
            format!("the client is here, the engine does not answer {}: {why}", machine.user()),
            "sudo systemctl start docker",
        ),
        Answer::Absent => Check::warn(NAME, "not here", "https://docs.docker.com/engine/install/"),
    }
}

fn tool(machine: &dyn Machine, name: &'static str, arguments: &[&str], remedy: &str) -> Check {
    match machine.ask(name, arguments) {
        Answer::Said(text) => Check::ok(name, text.lines().next().unwrap_or_default().trim()),
        Answer::Failed(why) => Check::warn(name, format!("does not run: {why}"), remedy),
        Answer::Absent => Check::warn(name, "not here", remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::local::fixture::Fixture;
    use crate::cluster::machine::State;

    #[test]
    fn a_client_without_an_engine_is_not_taken_for_docker() {
        let refused = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.";
        let machine = Fixture::full().answering(
            "docker version --format {{.Server.Version}}",
            Answer::Failed(refused.into()),
        );
        let check = docker(&machine);
        assert_eq!(check.state, State::Warn);
        assert!(check.found.contains("the engine does not answer root"), "{check:?}");
    }
}
