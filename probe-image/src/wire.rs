//! The frames of a flow: the same bytes as a TCP frame and as a UDP datagram.
//!
//! Takes and gives bytes. [`parse`] is total: whatever arrives, it gives a frame, asks for more or
//! says that this is no frame; it never panics and never reads past what it was given.
//!
//! ```text
//! length u16 (of all that follows) | version u8 | kind u8 | flow u64 | sequence u64 | sent_ns i64 |
//!     answers: mono_ns i64 | wall_ns i64 | pod | uid | instance | boot_id
//! ```
//!
//! Integers are big-endian; a string is its length (u8, at most [`MAX_STRING`]) and its UTF-8.

use std::fmt;

/// The version of this format.
pub const VERSION: u8 = 1;
/// The longest identity string, in bytes.
pub const MAX_STRING: usize = 64;
/// Bytes of a heartbeat and of a bye.
pub const SHORT_FRAME: usize = 2 + BODY;
/// The longest frame, in bytes.
pub const MAX_FRAME: usize = SHORT_FRAME + 16 + 4 * (1 + MAX_STRING);

/// Version, kind, flow, sequence number and one time.
const BODY: usize = 2 + 8 + 8 + 8;

const HEARTBEAT: u8 = 1;
const ANSWER: u8 = 2;
const BYE: u8 = 3;

/// One frame, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The client asks.
    Heartbeat(Heartbeat),
    /// The app answers.
    Answer(Answer<'a>),
    /// The app is about to close the connection: its last frame.
    Bye(Bye),
}

/// What the client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The flow's number, of the client's choosing: answers carry it back, so that answers to an
    /// earlier owner of the same port are told from this one's.
    pub flow: u64,
    /// Counts this flow's heartbeats.
    pub sequence: u64,
    /// The client's `CLOCK_MONOTONIC`, nanoseconds.
    pub sent_ns: i64,
}

/// What the app answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The heartbeat that is answered.
    pub heartbeat: Heartbeat,
    /// The app's `CLOCK_MONOTONIC`, nanoseconds.
    pub mono_ns: i64,
    /// The app's `CLOCK_REALTIME`, nanoseconds.
    pub wall_ns: i64,
    /// Who answers, still encoded: equal bytes are the same speaker. [`Speaker::parse`] reads it.
    pub speaker: &'a [u8],
}

/// What the app says last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bye {
    /// The flow's number, as its heartbeats gave it; 0 where none came.
    pub flow: u64,
    /// How many heartbeats were answered on this connection.
    pub answered: u64,
    /// The app's `CLOCK_MONOTONIC`, nanoseconds.
    pub mono_ns: i64,
}

/// Who answers: a process, its pod and its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaker<'a> {
    /// The pod's name.
    pub pod: &'a str,
    /// The pod's UID.
    pub uid: &'a str,
    /// The process's own id, made at its start.
    pub instance: &'a str,
    /// The kernel's boot id; empty where it can't be read.
    pub boot_id: &'a str,
}

/// The bytes are no frame of this version; a stream is lost from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFrame;

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a frame of version {VERSION}")
    }
}

impl std::error::Error for BadFrame {}

/// An identity string is longer than [`MAX_STRING`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "longer than {MAX_STRING} bytes")
    }
}

impl std::error::Error for TooLong {}

/// Reads the first frame of `bytes`: the frame and its length, or `None` where more bytes are
/// needed (in a datagram: it is cut short).
///
/// # Errors
/// The bytes can't be the beginning of a frame.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, BadFrame> {
    let mut rest = Reader(bytes);
    let Some(length) = rest.u16() else { return Ok(None) };
    let length = usize::from(length);
    if !(BODY..=MAX_FRAME - 2).contains(&length) {
        return Err(BadFrame);
    }
    let Some(body) = rest.take(length) else { return Ok(None) };
    Ok(Some((parse_body(body).ok_or(BadFrame)?, 2 + length)))
}

fn parse_body(body: &[u8]) -> Option<Frame<'_>> {
    let mut rest = Reader(body);
    let [version, kind] = *rest.array()?;
    let (flow, sequence, ns) = (rest.u64()?, rest.u64()?, rest.i64()?);
    let frame = match kind {
        HEARTBEAT => Frame::Heartbeat(Heartbeat { flow, sequence, sent_ns: ns }),
        BYE => Frame::Bye(Bye { flow, answered: sequence, mono_ns: ns }),
        ANSWER => {
            let heartbeat = Heartbeat { flow, sequence, sent_ns: ns };
            let (mono_ns, wall_ns) = (rest.i64()?, rest.i64()?);
            let speaker = std::mem::take(&mut rest.0);
            Frame::Answer(Answer { heartbeat, mono_ns, wall_ns, speaker })
        }
        _ => return None,
    };
    (version == VERSION && rest.0.is_empty()).then_some(frame)
}

impl Heartbeat {
    /// The frame's bytes.
    pub fn encode(&self) -> [u8; SHORT_FRAME] {
        short_frame(HEARTBEAT, self.flow, self.sequence, self.sent_ns)
    }
}

impl Bye {
    /// The frame's bytes.
    pub fn encode(&self) -> [u8; SHORT_FRAME] {
        short_frame(BYE, self.flow, self.answered, self.mono_ns)
    }
}

impl Answer<'_> {
    /// Appends the frame's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let Heartbeat { flow, sequence, sent_ns } = self.heartbeat;
        let mut head = short_frame(ANSWER, flow, sequence, sent_ns);
        // What `Speaker::encode` gives always fits; other bytes make a frame that nobody reads.
        let length = u16::try_from(BODY + 16 + self.speaker.len()).unwrap_or(0);
        head[..2].copy_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(&self.mono_ns.to_be_bytes());
        out.extend_from_slice(&self.wall_ns.to_be_bytes());
        out.extend_from_slice(self.speaker);
    }
}

impl<'a> Speaker<'a> {
    /// The bytes that answers carry.
    ///
    /// # Errors
    /// A string is longer than [`MAX_STRING`] bytes. Names that Kubernetes generates are not (63).
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        let mut out = Vec::new();
        for text in [self.pod, self.uid, self.instance, self.boot_id] {
            let length = u8::try_from(text.len()).map_err(|_| TooLong)?;
            if usize::from(length) > MAX_STRING {
                return Err(TooLong);
            }
            out.push(length);
            out.extend_from_slice(text.as_bytes());
        }
        Ok(out)
    }

    /// Reads [`Answer::speaker`].
    ///
    /// # Errors
    /// The bytes are not four strings.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BadFrame> {
        let mut rest = Reader(bytes);
        let mut text = || rest.text().ok_or(BadFrame);
        let speaker = Speaker { pod: text()?, uid: text()?, instance: text()?, boot_id: text()? };
        if rest.0.is_empty() { Ok(speaker) } else { Err(BadFrame) }
    }
}

fn short_frame(kind: u8, flow: u64, number: u64, ns: i64) -> [u8; SHORT_FRAME] {
    let mut out = [0; SHORT_FRAME];
    out[..2].copy_from_slice(&(BODY as u16).to_be_bytes());
    out[2] = VERSION;
    out[3] = kind;
    out[4..12].copy_from_slice(&flow.to_be_bytes());
    out[12..20].copy_from_slice(&number.to_be_bytes());
    out[20..].copy_from_slice(&ns.to_be_bytes());
    out
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(|b| u16::from_be_bytes(*b))
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(|b| u64::from_be_bytes(*b))
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(|b| i64::from_be_bytes(*b))
    }

    fn text(&mut self) -> Option<&'a str> {
        let [length] = *self.array()?;
        if usize::from(length) > MAX_STRING {
            return None;
        }
        std::str::from_utf8(self.take(usize::from(length))?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heartbeat() -> impl Strategy<Value = Heartbeat> {
        any::<(u64, u64, i64)>().prop_map(|(flow, sequence, sent_ns)| Heartbeat {
            flow,
            sequence,
            sent_ns,
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_not_but_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            length in any::<Option<u16>>(),
        ) {
            let mut bytes = bytes;
            if let (Some(length), [high, low, ..]) = (length, &mut bytes[..]) {
                [*high, *low] = (length % 400).to_be_bytes();
            }
            if let Ok(Some((frame, used))) = parse(&bytes) {
                prop_assert!(used <= bytes.len());
                if let Frame::Answer(answer) = frame {
                    let _ = Speaker::parse(answer.speaker);
                }
            }
        }

        #[test]
        fn a_speaker_is_read_from_any_bytes_without_a_panic(
            bytes in prop::collection::vec(0..70u8, 0..300)
        ) {
            if let Ok(speaker) = Speaker::parse(&bytes) {
                prop_assert_eq!(speaker.encode().unwrap(), bytes);
            }
        }

        #[test]
        fn frames_are_read_as_they_were_written(
            heartbeat in heartbeat(), times in any::<(i64, i64)>(),
            texts in prop::array::uniform4("[a-z0-9-]{0,64}"),
        ) {
            let [pod, uid, instance, boot_id] = &texts;
            let speaker = Speaker { pod, uid, instance, boot_id };
            let encoded = speaker.encode().unwrap();
            let answer =
                Answer { heartbeat, mono_ns: times.0, wall_ns: times.1, speaker: &encoded };
            let bye = Bye { flow: heartbeat.flow, answered: heartbeat.sequence, mono_ns: times.0 };

            let mut stream = heartbeat.encode().to_vec();
            answer.encode(&mut stream);
            stream.extend(bye.encode());
            let mut rest = &stream[..];
            for expected in [Frame::Heartbeat(heartbeat), Frame::Answer(answer), Frame::Bye(bye)] {
                let (frame, used) = parse(rest).unwrap().unwrap();
                prop_assert_eq!(frame, expected);
                prop_assert!(used <= MAX_FRAME);
                for cut in 0..used {
                    prop_assert_eq!(parse(&rest[..cut]), Ok(None));
                }
                rest = &rest[used..];
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(Speaker::parse(&encoded).unwrap(), speaker);
        }
    }

    #[test]
    fn the_longest_answer_is_read() {
        let text = "x".repeat(MAX_STRING);
        let speaker = Speaker { pod: &text, uid: &text, instance: &text, boot_id: &text };
        let speaker = speaker.encode().unwrap();
        let heartbeat = Heartbeat { flow: 1, sequence: 2, sent_ns: 3 };
        let mut bytes = Vec::new();
        Answer { heartbeat, mono_ns: 4, wall_ns: 5, speaker: &speaker }.encode(&mut bytes);
        assert_eq!(bytes.len(), MAX_FRAME);
        assert!(matches!(parse(&bytes), Ok(Some((Frame::Answer(_), MAX_FRAME)))));
    }

    #[test]
    fn a_string_of_65_bytes_is_refused() {
        let text = "x".repeat(MAX_STRING + 1);
        assert_eq!(
            Speaker { pod: &text, uid: "", instance: "", boot_id: "" }.encode(),
            Err(TooLong)
        );
    }

    #[test]
    fn an_http_request_is_no_frame() {
        assert_eq!(parse(b"GET / HTTP/1.1\r\n"), Err(BadFrame));
    }
}
