//! The probe's log: one JSON object a line on standard output, few enough that no log is rotated.
//!
//! The probe writes a line when something happens to the process, never for a flow or a heartbeat.
//! Times are read on the pod's own clocks; `boot_id` says whether the runner shares them.

use serde::{Deserialize, Serialize};

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it happened: `CLOCK_MONOTONIC`, nanoseconds since boot.
    pub mono_ns: i64,
    /// The same instant: `CLOCK_REALTIME`, nanoseconds since 1970 (UTC).
    pub wall_ns: i64,
    /// The kernel's boot id; empty where it can't be read.
    pub boot_id: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// This process's own id, made at its start.
    pub instance: String,
    /// What happened.
    #[serde(flatten)]
    pub event: LogEvent,
}

/// What happened; the line's `event` is the variant's name in kebab case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum LogEvent {
    /// The process has started.
    Started {
        /// The probe's version.
        version: String,
    },
    /// All its sockets are bound, and it answers.
    Listening {
        /// Where it accepts TCP flows.
        tcp_port: u16,
        /// Where it answers UDP flows.
        udp_port: u16,
        /// Where it answers `GET /readyz`.
        readyz_port: u16,
    },
    /// SIGTERM has arrived. The line may be written later than this; its times are those of the
    /// arrival.
    Sigterm,
    /// `/readyz` answers something else than before.
    Readyz {
        /// What it answers from now on.
        status: Readiness,
    },
    /// The probe has reset all its TCP connections, as it was told.
    ResetForced {
        /// How many.
        flows: u64,
    },
    /// It accepts no more connections, and goes on serving those that it holds.
    DrainStarted {
        /// How many TCP connections it holds.
        flows: u64,
    },
    /// It stops serving: it says `bye` on each connection that is left, and closes it.
    DrainEnded {
        /// Whether it ends because every connection is gone; else because the window is over.
        all_gone: bool,
        /// How many TCP connections are left.
        flows: u64,
    },
    /// New connections can't be accepted (out of descriptors and the like); said once.
    AcceptFailed {
        /// The error.
        error: String,
    },
    /// The process is about to exit.
    Exiting {
        /// With this code.
        code: i32,
    },
}

/// What `/readyz` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Readiness {
    /// 200
    Pass,
    /// 503
    Fail,
}

impl LogLine {
    /// Reads a line as it stands in the log, without its end of line.
    ///
    /// # Errors
    /// The line is no log line of this version of the probe.
    pub fn parse(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }

    /// The line as it is written, with its end of line.
    pub fn to_text(&self) -> String {
        // Strings and integers under string keys always become JSON.
        let mut text = serde_json::to_string(self).expect("a log line is JSON");
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(event: LogEvent) -> LogLine {
        LogLine {
            mono_ns: 123_456_789_012_345,
            wall_ns: 1_764_500_000_000_000_000,
            boot_id: "b".into(),
            pod: "p".into(),
            uid: "u".into(),
            instance: "i".into(),
            event,
        }
    }

    #[test]
    fn a_line_is_one_flat_json_object() {
        assert_eq!(
            line(LogEvent::DrainEnded { all_gone: true, flows: 0 }).to_text(),
            concat!(
                r#"{"mono_ns":123456789012345,"wall_ns":1764500000000000000,"boot_id":"b","#,
                r#""pod":"p","uid":"u","instance":"i","event":"drain-ended","#,
                r#""all_gone":true,"flows":0}"#,
                "\n"
            )
        );
    }

    #[test]
    fn every_event_survives_the_log() {
        for event in [
            LogEvent::Started { version: "0.1.0".into() },
            LogEvent::Listening { tcp_port: 7001, udp_port: 7002, readyz_port: 7003 },
            LogEvent::Sigterm,
            LogEvent::Readyz { status: Readiness::Fail },
            LogEvent::ResetForced { flows: 10 },
            LogEvent::DrainStarted { flows: 10 },
            LogEvent::DrainEnded { all_gone: false, flows: 3 },
            LogEvent::AcceptFailed { error: "EMFILE\n".into() },
            LogEvent::Exiting { code: 0 },
        ] {
            let line = line(event);
            assert_eq!(LogLine::parse(line.to_text().trim_end()).unwrap(), line);
        }
    }
}
