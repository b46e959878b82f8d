//! Who this process is, its clocks, and its log.

use std::env;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};

use drainwatch_probe::log::{LogEvent, LogLine};
use drainwatch_probe::wire::Speaker;
use nix::time::{ClockId, clock_gettime};

/// An instant on both of the pod's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub mono_ns: i64,
    /// `CLOCK_REALTIME`, nanoseconds.
    pub wall_ns: i64,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        let read = |clock| {
            // Both clocks exist on every Linux.
            let time = clock_gettime(clock).expect("the clock can be read");
            time.tv_sec() * 1_000_000_000 + time.tv_nsec()
        };
        Self { mono_ns: read(ClockId::CLOCK_MONOTONIC), wall_ns: read(ClockId::CLOCK_REALTIME) }
    }
}

/// Who this process is.
#[derive(Debug)]
pub struct Process {
    pod: String,
    uid: String,
    instance: String,
    boot_id: String,
    /// The same, as answers carry it.
    pub speaker: Vec<u8>,
}

impl Process {
    /// Reads the environment, and makes up the instance's id.
    ///
    /// # Errors
    /// `POD_NAME` or `POD_UID` is too long to be sent.
    pub fn new() -> io::Result<Self> {
        let var = |name| env::var(name).unwrap_or_else(|_| "unknown".to_owned());
        let (pod, uid) = (var("POD_NAME"), var("POD_UID"));
        // The keys of a new hasher come from the kernel's random numbers; an empty image may
        // lack /dev/urandom.
        let instance = format!("{:016x}", RandomState::new().hash_one((std::process::id(), &uid)));
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|text| text.trim().to_owned())
            .unwrap_or_default();
        let speaker = Speaker { pod: &pod, uid: &uid, instance: &instance, boot_id: &boot_id };
        let speaker =
            speaker.encode().map_err(|e| io::Error::other(format!("POD_NAME or POD_UID: {e}")))?;
        Ok(Self { pod, uid, instance, boot_id, speaker })
    }

    /// Writes a line to the log. A log that can't be written must not stop the app.
    pub fn log(&self, at: Moment, event: LogEvent) {
        let line = LogLine {
            mono_ns: at.mono_ns,
            wall_ns: at.wall_ns,
            boot_id: self.boot_id.clone(),
            pod: self.pod.clone(),
            uid: self.uid.clone(),
            instance: self.instance.clone(),
            event,
        };
        let mut out = io::stdout().lock();
        let _ = out.write_all(line.to_text().as_bytes()).and_then(|()| out.flush());
    }
}
