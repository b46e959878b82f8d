//! The little of a go.mod that a build needs: read from a component's module, written into the one
//! that requires it.
//!
//! Takes and gives text. Knows nothing of Go itself.

use super::versions::Item;

/// A module's file, as far as a build needs it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ModFile {
    /// `1.24.0`
    pub go: String,
    /// `default=go1.24`
    godebug: Vec<String>,
    /// Modules that it replaces by folders of its own repository.
    staging: Vec<String>,
}

impl ModFile {
    /// Reads what is needed, in single lines and in blocks. (`go mod edit -json` would refuse a
    /// file that is newer than the Go, before we can say so.)
    pub fn parse(text: &str) -> Self {
        let mut file = Self::default();
        let mut block = "";
        for line in text.lines() {
            let line = line.split("//").next().unwrap_or("").trim();
            let (verb, rest) = match (block, line.split_once(char::is_whitespace)) {
                ("", Some((verb, "("))) => {
                    block = verb;
                    continue;
                }
                ("", Some((verb, rest))) => (verb, rest.trim()),
                ("", None) => continue,
                _ if line == ")" => {
                    block = "";
                    continue;
                }
                _ => (block, line),
            };
            match verb {
                "go" => file.go = rest.into(),
                "godebug" if !rest.is_empty() => file.godebug.push(rest.into()),
                "replace" => {
                    if let Some((name, to)) = rest.split_once("=>")
                        && to.trim().starts_with("./staging/")
                    {
                        file.staging.extend(name.split_whitespace().next().map(str::to_owned));
                    }
                }
                _ => {}
            }
        }
        file
    }

    /// A module that requires an item and is otherwise like this one. Kubernetes publishes its
    /// staging folders as modules of their own: v1.34.0 goes with v0.34.0.
    pub fn requiring(&self, item: &Item, module: &str) -> String {
        let mut text =
            format!("module drainwatch.local/{}\n\ngo {}\n\n", item.part.name(), self.go);
        for setting in &self.godebug {
            text += &format!("godebug {setting}\n");
        }
        text += &format!("require {} {}\n", module, item.version);
        for name in &self.staging {
            let version = item.version.replacen("v1.", "v0.", 1);
            text += &format!("replace {name} => {name} {version}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::local::components::versions::{Part, Release};

    #[test]
    fn a_module_is_made_from_lines_and_from_blocks_alike() {
        let lines = "module k8s.io/kubernetes\n\ngo 1.24.0\n\ngodebug default=go1.24\n\n\
                     require (\n\tgo.etcd.io/etcd v3.6.4 // indirect\n)\n\n\
                     replace k8s.io/api => ./staging/src/k8s.io/api\n\
                     replace example.com/fork => example.com/other v1.0.0\n";
        let blocks = "// Generated.\nmodule k8s.io/kubernetes // here\ngo 1.24.0\n\
                      godebug (\n\tdefault=go1.24\n)\nreplace (\n\
                      \tk8s.io/api => ./staging/src/k8s.io/api\n)\n";
        let file = ModFile::parse(lines);
        assert_eq!(file, ModFile::parse(blocks));
        let item = Release::parse("1.34.0").unwrap().item(Part::Kubernetes);
        assert_eq!(
            file.requiring(&item, "k8s.io/kubernetes"),
            "module drainwatch.local/kubernetes\n\ngo 1.24.0\n\ngodebug default=go1.24\n\
             require k8s.io/kubernetes v1.34.0\nreplace k8s.io/api => k8s.io/api v0.34.0\n"
        );
    }
}
