//! What the kernel can do: by its modules where it tells, else by trying it out.
//!
//! Nothing is tried where that would load a module: a kernel that has a feature as a module which
//! is not loaded yet is taken at its word.

use super::tools::{Distribution, distribution};
use crate::cluster::machine::{Answer, Check, Machine};

/// A feature of the kernel and how it shows.
struct Feature {
    name: &'static str,
    /// Modules that a trial would load.
    modules: &'static [&'static str],
    /// A tool, its arguments, and what it gets to read.
    trial: Option<(&'static str, &'static [&'static str], &'static str)>,
    /// Who needs it, where not every cluster does.
    optional: Option<&'static str>,
    /// The kernel's own name for it.
    config: &'static str,
}

const FEATURES: [Feature; 6] = [
    Feature {
        name: "veth",
        modules: &["veth"],
        trial: Some(("ip", &["link", "add", "dw0", "type", "veth", "peer", "name", "dw1"], "")),
        optional: None,
        config: "CONFIG_VETH",
    },
    Feature {
        name: "bridge",
        modules: &["bridge", "stp", "llc"],
        trial: Some(("ip", &["link", "add", "dw0", "type", "bridge"], "")),
        optional: None,
        config: "CONFIG_BRIDGE",
    },
    Feature {
        name: "iptables rules",
        modules: &[
            "nf_tables",
            "nft_compat",
            "nft_chain_nat",
            "nf_nat",
            "nf_conntrack",
            "x_tables",
            "xt_comment",
            "xt_tcpudp",
            "xt_addrtype",
            "xt_mark",
            "xt_statistic",
            "xt_nat",
            "xt_MASQUERADE",
            "xt_conntrack",
            "ipt_REJECT",
        ],
        trial: Some(("iptables-restore", &[], IPTABLES_RULES)),
        optional: None,
        config: "CONFIG_NFT_COMPAT, CONFIG_NETFILTER_XTABLES and its matches",
    },
    Feature {
        name: "nftables rules",
        modules: &[
            "nf_tables",
            "nft_chain_nat",
            "nft_nat",
            "nft_fib",
            "nft_fib_ipv4",
            "nft_numgen",
            "nft_ct",
            "nft_masq",
            "nft_reject",
            "nft_reject_ipv4",
            "nf_nat",
            "nf_conntrack",
        ],
        trial: Some(("nft", &["-f", "-"], NFT_RULES)),
        optional: Some("cluster.proxy_mode = \"nftables\""),
        config: "CONFIG_NF_TABLES and its expressions",
    },
    Feature {
        name: "connection tracking",
        modules: &["nf_conntrack", "nf_conntrack_netlink", "nfnetlink"],
        trial: Some(("conntrack", &["-L"], "")),
        optional: None,
        config: "CONFIG_NF_CT_NETLINK",
    },
    Feature {
        name: "overlayfs",
        modules: &["overlay"],
        trial: None,
        optional: None,
        config: "CONFIG_OVERLAY_FS",
    },
];

/// The kinds of rules that kube-proxy writes in iptables mode.
const IPTABLES_RULES: &str = "\
*nat
:SVC - [0:0]
:MARK-MASQ - [0:0]
-A PREROUTING -m comment --comment services -j SVC
-A SVC -p tcp -m tcp --dport 80 -m addrtype --dst-type LOCAL -j MARK-MASQ
-A SVC -p tcp -m statistic --mode random --probability 0.5 -m tcp -j DNAT --to-destination 192.0.2.1:80
-A MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
COMMIT
*filter
-A INPUT -p udp -m conntrack --ctstate NEW -m udp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
";

/// The kinds of rules that kube-proxy writes in nftables mode.
const NFT_RULES: &str = "\
add table ip t
add chain ip t pre { type nat hook prerouting priority -100 ; }
add chain ip t post { type nat hook postrouting priority 100 ; }
add chain ip t in { type filter hook input priority -110 ; }
add chain ip t a
add chain ip t b
add map ip t services { type ipv4_addr . inet_proto . inet_service : verdict ; }
add rule ip t pre fib daddr type local ip daddr . meta l4proto . th dport vmap @services
add rule ip t pre numgen random mod 2 vmap { 0 : goto a, 1 : goto b }
add rule ip t a meta l4proto tcp dnat to 192.0.2.1:80
add rule ip t post meta mark & 0x4000 != 0 masquerade fully-random
add rule ip t in ct state new reject
";

/// Kube-proxy's nftables mode asks for this kernel.
const NFTABLES_SINCE: (u32, u32) = (5, 13);

/// The kinds of namespaces that a node is made of.
const NAMESPACES: [&str; 5] = ["ipc", "mnt", "net", "pid", "uts"];

/// Namespaces, and what is needed in them.
pub(super) fn features(machine: &dyn Machine) -> Vec<Check> {
    let modules = Modules::read(machine);
    let mut checks = vec![namespaces(machine)];
    checks.extend(FEATURES.iter().map(|feature| feature.check(machine, &modules)));
    checks
}

fn namespaces(machine: &dyn Machine) -> Check {
    const NAME: &str = "namespaces";
    let there = |name: &&str| machine.exists(&format!("/proc/self/ns/{name}"));
    let missing: Vec<&str> = NAMESPACES.into_iter().filter(|name| !there(name)).collect();
    if !missing.is_empty() {
        return Check::lacks(
            NAME,
            format!("this kernel has none of the kinds {}", missing.join(", ")),
            "use a kernel that has them (CONFIG_NAMESPACES)",
        );
    }
    if !machine.is_root() {
        return Check::ok(NAME, format!("{} (not tried: that needs root)", NAMESPACES.join(", ")));
    }
    match machine.try_out("true", &[], "") {
        Answer::Said(_) => Check::ok(NAME, format!("{}, tried out", NAMESPACES.join(", "))),
        Answer::Failed(why) => Check::lacks(
            NAME,
            format!("new ones can't be made: {why}"),
            "run it on the host itself, or in a container with --privileged",
        ),
        Answer::Absent => {
            Check::warn(NAME, "not tried: there is no `true` here", "install coreutils")
        }
    }
}

impl Feature {
    fn check(&self, machine: &dyn Machine, modules: &Modules) -> Check {
        let name = self.name;
        if name == "nftables rules"
            && let Some(release) = release(machine).filter(|release| *release < NFTABLES_SINCE)
        {
            let found = format!(
                "kernel {}.{} is older than kube-proxy's nftables mode asks for ({}.{})",
                release.0, release.1, NFTABLES_SINCE.0, NFTABLES_SINCE.1
            );
            return Check::warn(name, found, "use cluster.proxy_mode = \"iptables\"");
        }
        let states: Vec<Module> =
            self.modules.iter().map(|module| modules.state(machine, module)).collect();
        if states.contains(&Module::Loadable) {
            return Check::ok(name, "kernel modules, loaded when first needed (not tried)");
        }
        let Some((tool, arguments, input)) = self.trial else {
            return self.by_file_systems(machine);
        };
        if !machine.is_root() {
            return match states.iter().all(|state| *state == Module::Here) {
                true => Check::ok(name, "in the kernel (not tried: that needs root)"),
                false => Check::warn(name, "not tried: that needs root", "sudo drainwatch doctor"),
            };
        }
        match machine.try_out(tool, arguments, input) {
            Answer::Said(_) => Check::ok(name, "tried out in a namespace of its own"),
            Answer::Failed(why) => self.lacking(machine, &format!("tried out, and refused: {why}")),
            Answer::Absent => Check::warn(
                name,
                format!("not tried: there is no {tool} here"),
                "see that tool below",
            ),
        }
    }

    /// Without a trial: file systems are listed.
    fn by_file_systems(&self, machine: &dyn Machine) -> Check {
        let list = machine.read("/proc/filesystems").unwrap_or_default();
        let kind = self.modules.first().copied().unwrap_or_default();
        match list.lines().any(|line| line.split_whitespace().last() == Some(kind)) {
            true => Check::ok(self.name, "in the kernel"),
            false => self.lacking(machine, "not in /proc/filesystems, and no module of it"),
        }
    }

    fn lacking(&self, machine: &dyn Machine, found: &str) -> Check {
        let has_it = format!("use a kernel that has it ({})", self.config);
        let release = machine.read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let ubuntu = machine.read("/etc/os-release").is_some_and(|text| text.contains("ID=ubuntu"));
        let remedy = match ubuntu && distribution(machine) == Distribution::Debian {
            true => format!("sudo apt-get install -y linux-modules-extra-{}", release.trim()),
            false => has_it,
        };
        match self.optional {
            Some(who) => Check::warn(self.name, format!("{found}; only for {who}"), remedy),
            None => Check::lacks(self.name, found, remedy),
        }
    }
}

/// Whether the kernel tells of what connection tracking does.
pub(super) fn conntrack_events(machine: &dyn Machine) -> Check {
    const NAME: &str = "conntrack events";
    match machine.read("/proc/sys/net/netfilter/nf_conntrack_events").as_deref().map(str::trim) {
        Some("0") => {
            Check::warn(NAME, "switched off", "sudo sysctl -w net.netfilter.nf_conntrack_events=1")
        }
        Some(value) => Check::ok(NAME, format!("net.netfilter.nf_conntrack_events = {value}")),
        None => Check::warn(
            NAME,
            "can't be told before connection tracking is in use",
            "sudo modprobe nf_conntrack",
        ),
    }
}

/// Whether kube-proxy's mode ipvs can work.
pub(super) fn ipvs(machine: &dyn Machine) -> Check {
    const NAME: &str = "ip_vs";
    let loadable =
        || matches!(machine.ask("modprobe", &["--dry-run", "--quiet", "ip_vs"]), Answer::Said(_));
    match Modules::read(machine).state(machine, "ip_vs") {
        Module::Here => Check::ok(NAME, "in the kernel"),
        Module::Loadable => Check::ok(NAME, "a kernel module, loaded when first needed"),
        Module::Unknown if loadable() => Check::ok(NAME, "a kernel module"),
        Module::Unknown => Check::warn(
            NAME,
            "this kernel has no IPVS (no module ip_vs)",
            "use cluster.proxy_mode = \"iptables\" or \"nftables\", or another machine",
        ),
    }
}

/// The kernel's version as two numbers.
fn release(machine: &dyn Machine) -> Option<(u32, u32)> {
    let text = machine.read("/proc/sys/kernel/osrelease")?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Module {
    /// Loaded, or built in.
    Here,
    /// A file that the kernel would load when it needs it.
    Loadable,
    /// Not listed: built in without being told, or not there.
    Unknown,
}

/// What this kernel's folder of modules lists.
struct Modules {
    built_in: Vec<String>,
    files: Vec<String>,
}

impl Modules {
    fn read(machine: &dyn Machine) -> Self {
        let release = machine.read("/proc/sys/kernel/osrelease").unwrap_or_default();
        let list = |name: &str| -> Vec<String> {
            let text = machine.read(&format!("/lib/modules/{}/{name}", release.trim()));
            text.unwrap_or_default().lines().filter_map(module_name).collect()
        };
        Self { built_in: list("modules.builtin"), files: list("modules.dep") }
    }

    fn state(&self, machine: &dyn Machine, name: &str) -> Module {
        let listed = |list: &[String]| list.iter().any(|module| module == name);
        if listed(&self.built_in) || machine.exists(&format!("/sys/module/{name}")) {
            Module::Here
        } else if listed(&self.files) {
            Module::Loadable
        } else {
            Module::Unknown
        }
    }
}

/// `xt_nat` of `kernel/net/netfilter/xt_nat.ko.zst: …`
fn module_name(line: &str) -> Option<String> {
    let file = line.split(':').next()?.rsplit('/').next()?;
    Some(file.split_once(".ko")?.0.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Fixture;
    use super::*;
    use crate::cluster::machine::State;

    fn point(machine: &Fixture, name: &str) -> Check {
        let found = features(machine).into_iter().find(|check| check.name == name);
        found.unwrap_or_else(|| panic!("no point {name}"))
    }

    const DEP: &str = "/lib/modules/6.1.0-18-amd64/modules.dep";
    const BUILT_IN: &str = "/lib/modules/6.1.0-18-amd64/modules.builtin";

    #[test]
    fn a_module_that_a_trial_would_load_is_not_tried() {
        let refuses = Answer::Failed("Operation not supported".into());
        let machine = Fixture::full().trying("ip", refuses.clone());
        assert_eq!(point(&machine, "veth").state, State::Lacks);
        let machine = machine.with(DEP, "kernel/drivers/net/veth.ko.xz:\nkernel/x/y.ko: a.ko\n");
        assert_eq!(point(&machine, "veth").state, State::Ok);
        assert!(point(&machine, "veth").found.contains("not tried"));
        // Loaded: now the trial decides.
        let machine = machine.with("/sys/module/veth", "");
        assert_eq!(point(&machine, "veth").state, State::Lacks);
    }

    #[test]
    fn a_builtin_module_of_either_spelling_is_here() {
        let machine = Fixture::full().with(BUILT_IN, "kernel/a/nf-conntrack.ko\n");
        let modules = Modules::read(&machine);
        assert_eq!(modules.state(&machine, "nf_conntrack"), Module::Here);
        assert_eq!(modules.state(&machine, "nf_tables"), Module::Unknown);
    }

    #[test]
    fn what_only_some_need_is_a_warning() {
        let refuses = Answer::Failed("no".into());
        let machine = Fixture::full().trying("nft", refuses.clone());
        assert_eq!(point(&machine, "nftables rules").state, State::Warn);
        let machine = Fixture::full().trying("iptables-restore", refuses);
        assert_eq!(point(&machine, "iptables rules").state, State::Lacks);
        let machine = Fixture::full().with("/proc/sys/kernel/osrelease", "5.10.0-28-amd64\n");
        assert!(point(&machine, "nftables rules").found.contains("kernel 5.10 is older"));
    }

    #[test]
    fn a_file_system_is_told_by_the_kernels_list() {
        assert_eq!(point(&Fixture::full(), "overlayfs").state, State::Ok);
        let machine = Fixture::full().with("/proc/filesystems", "nodev\ttmpfs\n\text4\n");
        assert_eq!(point(&machine, "overlayfs").state, State::Lacks);
        let machine = machine.with("/etc/os-release", "ID=ubuntu\nID_LIKE=debian\n");
        let remedy = "sudo apt-get install -y linux-modules-extra-6.1.0-18-amd64";
        assert_eq!(point(&machine, "overlayfs").remedy.as_deref(), Some(remedy));
    }
}
