//! The probe's log, followed while it is written.
//!
//! Times are the probe's own, on its pod's clock; the timeline relates them to the runner's.

use std::sync::Arc;

use drainwatch_probe::log::{LogEvent, LogLine};
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use tokio::sync::watch;

use super::{Lost, Watching};
use crate::clock::{Clock, Stamp};
use crate::observation::{Event, Observation, Sink, Source};

/// Which log to follow.
#[derive(Clone, Debug)]
pub struct Log {
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// The container's name.
    pub container: String,
}

/// What the log has said so far.
#[derive(Clone, Debug, Default)]
pub struct LogView {
    /// The process's first line.
    pub started: Option<Arc<Started>>,
    /// Whether the log has come to its end.
    pub ended: bool,
}

/// The process that writes the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The pod's UID.
    pub uid: String,
    /// Its instance id.
    pub instance: String,
    /// The probe's version.
    pub version: String,
    /// Its kernel's boot id.
    pub boot_id: String,
}

impl Log {
    /// Follows the log from its beginning until the container ends.
    pub fn follow(self, api: Api<Pod>, sink: Sink) -> Watching<LogView> {
        let (publish, view) = watch::channel(LogView::default());
        let task = tokio::spawn(self.run(api, sink, publish)).abort_handle();
        Watching { view, lost: Lost::default(), source: Source::ProbeLog, task }
    }

    async fn run(self, api: Api<Pod>, sink: Sink, publish: watch::Sender<LogView>) {
        if let Err(reason) = self.read(&api, &sink, &publish).await {
            let lost = Event::LogLost { uid: self.uid.clone(), reason };
            let _ = sink.send(Observation::at_most(Stamp::now(), Source::ProbeLog, lost));
        }
        publish.send_modify(|view| view.ended = true);
    }

    /// Reads to the end.
    async fn read(
        &self,
        api: &Api<Pod>,
        sink: &Sink,
        publish: &watch::Sender<LogView>,
    ) -> Result<(), String> {
        let container = Some(self.container.clone());
        let params = LogParams { container, follow: true, ..LogParams::default() };
        let stream = api.log_stream(&self.pod, &params).await.map_err(|e| e.to_string())?;
        let mut lines = stream.lines();
        while let Some(line) = lines.try_next().await.map_err(|e| e.to_string())? {
            let line =
                LogLine::parse(&line).map_err(|e| format!("not the probe's: {line}: {e}"))?;
            if let LogEvent::Started { version } = &line.event {
                let started = Arc::new(Started {
                    uid: self.uid.clone(),
                    instance: line.instance.clone(),
                    version: version.clone(),
                    boot_id: line.boot_id.clone(),
                });
                publish.send_modify(|view| view.started = Some(started));
            }
            if let Some(observation) = observe(&self.uid, line) {
                let _ = sink.send(observation);
            }
        }
        Ok(())
    }
}

/// A line as an observation on the pod's clock; none for lines that no verdict needs.
fn observe(uid: &str, line: LogLine) -> Option<Observation<Stamp>> {
    let (uid, instance) = (uid.to_owned(), line.instance);
    let at = Stamp { clock: Clock::Pod(uid.clone()), ns: line.mono_ns };
    let event = match line.event {
        LogEvent::Started { .. } => Event::ProbeStarted { pod: line.pod, uid, instance },
        LogEvent::Sigterm => Event::Sigterm { uid, instance },
        LogEvent::ResetForced { flows } => Event::ResetForced { uid, instance, flows },
        LogEvent::DrainStarted { flows } => Event::DrainStarted { uid, instance, flows },
        LogEvent::DrainEnded { all_gone, flows } => {
            Event::DrainEnded { uid, instance, all_gone, flows }
        }
        LogEvent::Exiting { code } => Event::ProbeExiting { uid, instance, code },
        LogEvent::Listening { .. } | LogEvent::Readyz { .. } | LogEvent::AcceptFailed { .. } => {
            return None;
        }
    };
    Some(Observation::exact(at, Source::ProbeLog, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_the_pods_own_time() {
        let line = LogLine {
            mono_ns: 42,
            wall_ns: 1,
            boot_id: "b".into(),
            pod: "p".into(),
            uid: "u".into(),
            instance: "i".into(),
            event: LogEvent::Sigterm,
        };
        let seen = observe("u", line).expect("an observation");
        assert_eq!(seen.at, Stamp { clock: Clock::Pod("u".into()), ns: 42 });
        assert_eq!(seen.event, Event::Sigterm { uid: "u".into(), instance: "i".into() });
    }
}
