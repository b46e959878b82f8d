//! A cluster by the options of a command: the keys of `[cluster]` without a file.
//!
//! Takes options as given; gives a [`ClusterSpec`], or problems that name the option. The checks
//! and the defaults are those of TOML.

use super::errors::{Errors, Problem, Problems};
use super::scenario::ClusterSpec;
use super::settings::{Layer, Origin, Setting, Settings, wrong_sysctl};
use super::source::{Place, Source};
use super::{overrides, resolve, schema, value};

/// `--sysctl NAME=VALUE`
const SYSCTL: &str = "--sysctl";

/// The options that stand for one key each.
const OPTIONS: [(&str, &str); 4] = [
    ("--kubernetes", "cluster.kubernetes"),
    ("--nodes", "cluster.nodes"),
    ("--proxy-mode", "cluster.proxy_mode"),
    ("--dns", "cluster.dns"),
];

/// The cluster of options such as `("--nodes", "3")`, `("--dns", "true")` and
/// `("--sysctl", "net.ipv4.tcp_retries2=5")`; what is not among them has its default.
///
/// # Errors
///
/// Everything that is wrong with them.
pub fn cluster(options: &[(&'static str, String)]) -> Result<ClusterSpec, Errors> {
    let mut problems = Problems::default();
    let mut settings = Settings::new();
    for (index, (option, text)) in options.iter().enumerate() {
        if let Err(problem) = read(option, text, index, &mut settings) {
            problems.push(problem);
        }
    }
    let cluster = resolve::cluster(&settings, &mut problems);
    problems.finish(cluster)
}

fn read(option: &str, text: &str, index: usize, settings: &mut Settings) -> Result<(), Problem> {
    let source = Source::flag(format!("{option} {text}"), index);
    let start = option.len() + 1;
    let mut key_place = Place::new(&source, start..start + text.len());
    let (mut key, mut shown, mut value) = (String::new(), option.to_owned(), text);
    if let Some((_, name)) = OPTIONS.iter().find(|(known, _)| *known == option) {
        key += name;
    } else {
        let Some((name, rest)) = text.split_once('=') else {
            let problem = Problem::at(key_place, format!("{SYSCTL} takes NAME=VALUE"));
            return Err(problem.help(format!("for example {SYSCTL} net.ipv4.tcp_retries2=5")));
        };
        key_place = Place::new(&source, start..start + name.len());
        if let Some(problem) = wrong_sysctl(name, &key_place) {
            return Err(problem);
        }
        key += &format!("{}.{name}", schema::SYSCTLS);
        shown += &format!(" {name}");
        value = rest;
    }
    let offset = source.text.len() - value.len();
    let origin = Origin { source, offset, layer: Layer::Flag };
    let parsed = overrides::parse(&key, value);
    let Some(known) = schema::find(&key) else {
        return Err(Problem::at(key_place, format!("{option} is no option of clusters")));
    };
    let typed = value::read(known, &shown, &parsed, &origin, &key_place);
    let value_place = origin.place(parsed.span());
    let (typed, problem) = match typed {
        Ok(value) => (Some(value), Ok(())),
        Err(problem) => (None, Err(problem)),
    };
    let text = value.to_owned();
    let setting = Setting { value: typed, text, key_place, value_place, layer: Layer::Flag };
    settings.insert(key, setting);
    problem
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ProxyMode;

    fn wrong(options: &[(&'static str, &str)]) -> String {
        let options: Vec<_> = options.iter().map(|(o, text)| (*o, (*text).to_owned())).collect();
        cluster(&options).unwrap_err().to_string()
    }

    #[test]
    fn what_is_not_given_is_as_in_toml() {
        let plain = cluster(&[]).unwrap();
        assert_eq!((&*plain.kubernetes, plain.nodes, plain.dns), ("1.34.0", 2, false));
        let all = cluster(&[
            ("--kubernetes", "1.33.5".into()),
            ("--nodes", "3".into()),
            ("--proxy-mode", "nftables".into()),
            ("--dns", "true".into()),
            ("--sysctl", "net.ipv4.tcp_retries2=5".into()),
            ("--sysctl", "net.ipv4.tcp_rmem=1 2 3".into()),
        ]);
        let all = all.unwrap();
        assert_eq!((&*all.kubernetes, all.nodes, all.dns), ("1.33.5", 3, true));
        assert_eq!(all.proxy_mode, ProxyMode::Nftables);
        assert_eq!(all.sysctls["net.ipv4.tcp_retries2"], "5");
        assert_eq!(all.sysctls["net.ipv4.tcp_rmem"], "1 2 3");
    }

    #[test]
    fn errors_name_the_option_as_it_is_written() {
        insta::assert_snapshot!(
            "wrong_options",
            wrong(&[
                ("--kubernetes", "1.34"),
                ("--nodes", "0"),
                ("--nodes", "many"),
                ("--nodes", "99999999999999999999"),
                ("--proxy-mode", "nftable"),
                ("--sysctl", "net.ipv4.tcp_retries2"),
                ("--sysctl", "vm.swappiness=1"),
                ("--sysctl", "net.ipv4.tcp_retries2="),
            ])
        );
        insta::assert_snapshot!("an_old_version", wrong(&[("--kubernetes", "1.20.1")]));
    }
}
