//! Which versions go together: for a Kubernetes version the etcd, containerd and CNI plugins that
//! its local clusters use, and what each of them consists of.
//!
//! Takes what the user wrote; gives [`Item`]s or an error. Knows nothing of files or networks.

use std::fmt;

use crate::cluster::ClusterError;
pub use crate::config::DEFAULT_KUBERNETES;
use crate::config::LOCAL_MINORS as MINORS;

/// One of the things that are downloaded or built, each in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy, kubelet.
    Kubernetes,
    /// etcd.
    Etcd,
    /// containerd 2, its shim and ctr.
    Containerd,
    /// The CNI plugins.
    Cni,
    /// CoreDNS, for clusters with DNS.
    CoreDns,
    /// kubectl, for whoever has none.
    Kubectl,
}

impl Part {
    /// What every cluster needs, the quick ones first: a machine where nothing can be built or
    /// downloaded is found out within seconds.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::Containerd, Self::Cni, Self::Kubernetes];

    /// What is only had where it is asked for. After Kubernetes: kubectl is quickly built then.
    pub const EXTRA: [Self; 2] = [Self::CoreDns, Self::Kubectl];

    /// All of them, in the order in which they are had.
    pub fn in_order() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain(Self::EXTRA)
    }

    /// Its name in the cache and in records: `kubernetes`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Etcd => "etcd",
            Self::Containerd => "containerd",
            Self::Cni => "cni",
            Self::CoreDns => "coredns",
            Self::Kubectl => "kubectl",
        }
    }

    /// Its name for people: `Kubernetes`.
    pub fn title(self) -> &'static str {
        match self {
            Self::Kubernetes => "Kubernetes",
            Self::Cni => "CNI plugins",
            Self::CoreDns => "CoreDNS",
            _ => self.name(),
        }
    }

    /// The files it consists of.
    pub fn binaries(self) -> &'static [&'static str] {
        match self {
            Self::Kubernetes => &[
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kube-proxy",
                "kubelet",
            ],
            Self::Etcd => &["etcd"],
            Self::Containerd => &["containerd", "containerd-shim-runc-v2", "ctr"],
            Self::Cni => &["ptp", "loopback", "host-local", "portmap"],
            Self::CoreDns => &["coredns"],
            Self::Kubectl => &["kubectl"],
        }
    }
}

/// A part in one version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    /// Which part.
    pub part: Part,
    /// Its version, as released: `v1.34.0`.
    pub version: String,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.part.title(), self.version)
    }
}

/// A Kubernetes version that local clusters can be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    minor: u32,
    patch: u32,
}

impl Release {
    /// Reads `1.34.0` or `v1.34.0`. Says nothing of whether such a patch was ever released.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] for anything else than a full version of a supported minor.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        let wrong = |why: &str| ClusterError::Missing {
            what: format!("kubernetes = {text:?}: {why}"),
            remedy: format!(
                "Local clusters are made of Kubernetes 1.{}.x to 1.{}.x: {DEFAULT_KUBERNETES}, for one.",
                MINORS.start(),
                MINORS.end()
            ),
        };
        // Digits only: parse() alone would take "+1", and a cache folder is named after this.
        let number = |t: &str| {
            t.chars().all(|c| c.is_ascii_digit()).then(|| t.parse::<u32>().ok()).flatten()
        };
        let numbers: Option<Vec<u32>> =
            text.strip_prefix('v').unwrap_or(text).split('.').map(number).collect();
        match numbers.as_deref() {
            Some(&[1, minor, patch]) if MINORS.contains(&minor) => Ok(Self { minor, patch }),
            Some(&[_, _, _]) => Err(wrong("this minor version is not supported")),
            Some(&[1, minor]) => {
                Err(wrong(&format!("name the patch version too, such as 1.{minor}.0")))
            }
            _ => Err(wrong("not a released version of Kubernetes")),
        }
    }

    /// What every cluster of this version consists of, in the order of [`Part::ALL`].
    pub fn items(self) -> [Item; 4] {
        Part::ALL.map(|part| self.item(part))
    }

    /// One part of it.
    pub fn item(self, part: Part) -> Item {
        // Kubernetes 1.36 and later need containerd 2; all minors here were seen with these.
        let version = match part {
            Part::Kubernetes | Part::Kubectl => format!("v{self}"),
            Part::Etcd => "v3.6.4".into(),
            Part::Containerd => "v2.1.5".into(),
            Part::Cni => "v1.8.0".into(),
            Part::CoreDns => "v1.12.1".into(),
        };
        Item { part, version }
    }
}

impl fmt::Display for Release {
    /// Without a `v`, as in TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_versions_of_supported_minors_are_taken() {
        for text in ["1.34.0", "v1.34.0", "1.37.2", "1.33.12"] {
            let release = Release::parse(text).unwrap();
            assert_eq!(release.to_string(), text.trim_start_matches('v'));
        }
        let items = Release::parse(DEFAULT_KUBERNETES).unwrap().items();
        assert_eq!(
            items.each_ref().map(ToString::to_string),
            ["etcd v3.6.4", "containerd v2.1.5", "CNI plugins v1.8.0", "Kubernetes v1.34.0"]
        );
    }

    #[test]
    fn everything_else_is_refused_with_what_would_do() {
        for (text, why) in [
            ("1.34", "name the patch version too, such as 1.34.0"),
            ("1.20.1", "not supported"),
            ("2.34.0", "not supported"),
            ("1.35.0-rc.1", "not a released version"),
            ("1.34.+1", "not a released version"),
            ("1.34.0/../..", "not a released version"),
            ("latest", "not a released version"),
            ("", "not a released version"),
        ] {
            let error = Release::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("1.33.x to 1.37.x"), "{error}");
        }
    }
}
