//! Who is who in a trial: pods by their part in it, addresses by what is behind them.
//!
//! Takes a trial's observations; gives names for people.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::kernels;
use crate::clock::Ms;
use crate::observation::{Event, Identity, Observation, Target};
use crate::record::Trial;

/// The pods of a trial, and the target's address.
#[derive(Debug)]
pub(super) struct Cast<'a> {
    target: Option<&'a Target>,
    /// The pods that were first seen after the trigger: name by UID.
    new: BTreeMap<&'a str, &'a str>,
    /// The target's, as the flows' first entries name it.
    address: Option<IpAddr>,
}

impl<'a> Cast<'a> {
    pub fn of(trial: &'a Trial) -> Self {
        let target = trial.target.as_ref();
        let mut first: BTreeMap<&str, (Ms, &str)> = BTreeMap::new();
        for observation in &trial.observations {
            if let Some((at, uid, pod)) = pod(observation) {
                let known = first.entry(uid).or_insert((at, pod));
                known.0 = known.0.min(at);
            }
        }
        let new = first.into_iter().filter(|(uid, (at, _))| {
            *at >= Ms(0) && target.is_none_or(|target| target.uid != **uid)
        });
        let new = new.map(|(uid, (_, pod))| (uid, pod)).collect();
        Self { target, new, address: kernels::address_of_target(trial) }
    }

    /// `the target`, `the replacement`, or a pod's name.
    pub fn pod(&self, uid: &str, pod: &str) -> String {
        if self.is_target(uid) {
            return "the target".to_owned();
        }
        match (self.new.get(uid), self.new.len()) {
            (Some(_), 1) => "the replacement".to_owned(),
            (Some(pod), _) => format!("the new pod {pod}"),
            (None, _) if pod.is_empty() => "another pod".to_owned(),
            (None, _) => format!("the pod {pod}"),
        }
    }

    /// The same of an app, of which only the UID is told.
    pub fn app(&self, uid: &str) -> String {
        if self.is_target(uid) {
            "the app".to_owned()
        } else {
            format!("{}'s app", self.pod(uid, ""))
        }
    }

    /// Who answered: a restarted container is another process of the same pod.
    pub fn process(&self, by: &Identity) -> String {
        let pod = self.pod(&by.uid, &by.pod);
        let known = self.target.filter(|target| target.uid == by.uid).map(|t| t.instance.as_str());
        match known {
            Some(instance) if !instance.is_empty() && instance != by.instance => {
                format!("another process of {pod}")
            }
            _ => pod,
        }
    }

    /// `10.244.1.2:7002 (the target)`
    pub fn address(&self, address: SocketAddr) -> String {
        format!("{address}{}", self.ip_note(address.ip()))
    }

    /// `10.244.1.2 (the target)`
    pub fn ip(&self, ip: IpAddr) -> String {
        format!("{ip}{}", self.ip_note(ip))
    }

    fn ip_note(&self, ip: IpAddr) -> &'static str {
        if self.address == Some(ip) { " (the target)" } else { "" }
    }

    fn is_target(&self, uid: &str) -> bool {
        self.target.is_some_and(|target| target.uid == uid)
    }

    /// The replacement's name, where there is one and only one.
    pub fn replacement(&self) -> Option<&'a str> {
        if self.new.len() == 1 { self.new.values().next().copied() } else { None }
    }
}

/// The pod that an observation is about, and when it was there.
fn pod(observation: &Observation) -> Option<(Ms, &str, &str)> {
    match &observation.event {
        Event::PodSeen { pod, uid }
        | Event::PodReady { pod, uid, .. }
        | Event::ProbeStarted { pod, uid, .. }
        | Event::Endpoint { pod, uid, .. } => Some((observation.at, uid, pod)),
        Event::Span { by, from, .. } => Some((*from, &by.uid, &by.pod)),
        _ => None,
    }
}
