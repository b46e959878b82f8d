//! What became of a report's flows, in our words.

use super::report::{Flow, Outcome, Proto};
use crate::observation::Protocol;
use crate::verdict::{Basis, Cause, Fate, FlowRecord};

/// What became of a flow. The tool leaves a flow at the first thing that ends it: nothing is known
/// of what it met later.
pub fn flow(flow: &Flow) -> FlowRecord {
    let fate = match flow.outcome {
        Outcome::DrainedCleanClose => Fate::Drained,
        Outcome::Severed => severed(&flow.detail),
        Outcome::ReadTimeout => Fate::Silent,
        Outcome::SurvivedObservationWindow => Fate::Survived,
        Outcome::NotMeasured => Fate::NotMeasured,
    };
    let [terminal, last_data] =
        [flow.t_terminal_ms, flow.last_data_t_ms].map(|t| t.map(|t| t as f64));
    let ended_ms = match fate {
        Fate::Survived | Fate::NotMeasured => None,
        // Its time is that of the tool's judgement; silence begins with the last answer.
        Fate::Silent => last_data,
        _ => terminal,
    };
    let outage = terminal.zip(last_data).map(|(answer, last)| answer - last);
    FlowRecord {
        id: flow.id.clone(),
        protocol: match flow.proto {
            Proto::Tcp => Protocol::Tcp,
            Proto::Udp => Protocol::Udp,
        },
        fate,
        ended_ms,
        spans: Vec::new(),
        outage_ms: outage.filter(|_| fate == Fate::Rehomed),
        refusals: (fate == Fate::Refused).into(),
        cause: (fate == Fate::Severed).then(|| Cause {
            text: format!("reported as: {}", flow.detail),
            basis: Basis::Measured,
            chain: Vec::new(),
        }),
    }
}

/// How a flow was severed stands in words only.
fn severed(detail: &str) -> Fate {
    let another = || {
        let named = detail.strip_prefix("answered by probe instance ")?;
        let (now, before) = named.split_once(", was ")?;
        Some(!now.is_empty() && !before.is_empty() && now != before)
    };
    // `econnreset on write`, `econnrefused (icmp port unreachable)`
    let errno = detail.split(' ').next().unwrap_or_default();
    match errno {
        "econnreset" => Fate::Reset,
        "econnrefused" => Fate::Refused,
        "eof-without-drain-announcement" => Fate::Closed,
        _ if detail.starts_with("udp-silence") => Fate::Silent,
        _ if another() == Some(true) => Fate::Rehomed,
        _ => Fate::Severed,
    }
}
