//! Flows: long-lived client connections that ask, and tell who answered, from when to when.
//!
//! Takes [`FlowSpec`]s and a [`Sink`]; gives observations of the source [`Source::Flow`] with
//! times on the runner's clock, and cheap snapshots for whoever waits. Knows nothing of
//! Kubernetes, of the trigger or of fates.
//!
//! [`Source::Flow`]: crate::observation::Source::Flow

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Stamp;
use crate::observation::{Identity, Sink};
use crate::record::Protocol;

/// One flow to keep up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowSpec {
    /// Unique among the flows: `tcp-1`.
    pub id: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// Whom it asks.
    pub remote: SocketAddr,
    /// One heartbeat each.
    pub interval: Duration,
    /// No answer for this long is a silence.
    pub silent_after: Duration,
    /// Where in the interval its heartbeats lie, so that flows don't send in step.
    pub delay: Duration,
}

/// `count` flows of one protocol, `tcp-1` and so on, spread evenly over the interval.
pub fn specs(
    protocol: Protocol,
    count: usize,
    remote: SocketAddr,
    interval: Duration,
    silent_after: Duration,
) -> Vec<FlowSpec> {
    let _ = (protocol, count, remote, interval, silent_after);
    todo!()
}

/// Opens the flows and keeps them up until [`Flows::finish`].
///
/// # Errors
/// The thread that serves them could not be started. A flow that can't be opened is no error
/// here: it is observed (`FlowFailed`, `Refused`, …) and has ended.
pub fn start(specs: Vec<FlowSpec>, sink: Sink) -> std::io::Result<Flows> {
    let _ = (specs, sink);
    todo!()
}

/// Flows that are kept up. Dropped without [`Flows::finish`], they end without a word.
#[derive(Debug)]
pub struct Flows {}

/// What a flow is at now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowState {
    /// Its id.
    pub id: Arc<str>,
    /// What it speaks.
    pub protocol: Protocol,
    /// Who answered first.
    pub first: Option<Arc<Identity>>,
    /// Who answered last.
    pub current: Option<Arc<Identity>>,
    /// When the last answer arrived.
    pub last_answer: Option<Stamp>,
    /// Heartbeats sent since the last answer arrived.
    pub unanswered: u64,
    /// Refused or unreachable, since the last answer arrived.
    pub refusals: u64,
    /// Its socket is done for: closed, reset, timed out or failed. UDP only ends by failing here.
    pub ended: bool,
}

/// A flow that has not been answered in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnswered {
    /// Its id.
    pub flow: String,
    /// What it met instead.
    pub why: String,
}

/// How one pod's clock relates to the runner's, from the round trips of the flows that it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockSample {
    /// The pod's UID.
    pub uid: String,
    /// Its kernel's boot id; `None` where the pod could not read it. When it equals the runner's,
    /// `CLOCK_MONOTONIC` is one clock and the rest of this is of no importance.
    pub boot_id: Option<String>,
    /// The shortest round trip of the first second in which it answered.
    pub first: RoundTrip,
    /// The shortest round trip of the last seconds in which it answered (at most two).
    pub latest: RoundTrip,
}

/// A heartbeat and its answer, as a bound on the difference of two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// When the answer arrived, on the runner's clock, nanoseconds.
    pub at_ns: i64,
    /// The pod's `CLOCK_MONOTONIC` less the runner's, nanoseconds.
    pub offset_ns: i64,
    /// The truth is within this of `offset_ns`: half the round trip.
    pub plus_minus_ns: i64,
}

/// Sums over all flows since [`start`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Heartbeats sent.
    pub sent: u64,
    /// Answers counted in spans.
    pub answered: u64,
    /// Answers of an instance that another one had already followed.
    pub late: u64,
    /// Frames and datagrams that were none of ours.
    pub stray: u64,
    /// Heartbeats that were due and could not be sent, or not in their interval.
    pub skipped: u64,
    /// The longest that a heartbeat was sent after its time, nanoseconds: how far this machine
    /// kept up.
    pub max_late_ns: i64,
}

impl Flows {
    /// Waits until each flow has been answered.
    ///
    /// # Errors
    /// `timeout` is over, or no flow is left that could still be answered: those that were not.
    pub async fn all_answered(&self, timeout: Duration) -> Result<(), Vec<NotAnswered>> {
        let _ = timeout;
        todo!()
    }

    /// What each flow is at, in the order of the specs.
    pub fn states(&self) -> Vec<FlowState> {
        todo!()
    }

    /// How the clocks of the pods that answered relate to the runner's, one entry a pod.
    pub fn clock_samples(&self) -> Vec<ClockSample> {
        todo!()
    }

    /// Sums over all flows.
    pub fn counters(&self) -> Counters {
        todo!()
    }

    /// Stops all flows, and emits what was still open: spans, silences, refusals, and
    /// `FlowStopped` for each flow that had not ended by itself.
    pub async fn finish(self) {
        todo!()
    }
}
