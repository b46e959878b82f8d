//! The story's rules, with instants made up by hand: milliseconds here.

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::*;

struct Scene {
    story: Story,
    sink: Sink,
    seen: UnboundedReceiver<Observation<Stamp>>,
}

const OLD: u8 = 0;
const NEW: u8 = 1;

fn who(instance: u8) -> Arc<Identity> {
    use std::sync::LazyLock;
    static WHO: LazyLock<[Arc<Identity>; 2]> = LazyLock::new(|| {
        [0, 1].map(|n| {
            let text = |part| format!("{part}-{n}");
            Arc::new(Identity { pod: text("pod"), uid: text("uid"), instance: text("instance") })
        })
    });
    Arc::clone(&WHO[usize::from(instance)])
}

fn closed_port() -> Refusal {
    Refusal {
        port: true,
        sender: Some([10, 0, 0, 1].into()),
        icmp_type: Some(3),
        icmp_code: Some(3),
        errno: 111,
    }
}

impl Scene {
    /// A flow that was opened at 0 and takes 100 ms for a silence.
    fn new() -> Self {
        let (sink, seen) = unbounded_channel();
        let mut story = Story::new("udp-1".into(), 100_000_000);
        let address = "127.0.0.1:1".parse().unwrap();
        story.opened(0, address, address, &sink);
        let mut scene = Self { story, sink, seen };
        assert_eq!(scene.seen().len(), 1);
        scene
    }

    fn send(&mut self, n: usize) {
        (0..n).for_each(|_| self.story.sent());
    }

    fn answer(&mut self, at_ms: i64, sequence: u64, instance: u8) -> Counted {
        self.story.answered(Met::done(at_ms * 1_000_000), sequence, &who(instance), &self.sink)
    }

    fn end(&mut self, at_ms: i64, end: End) -> Vec<String> {
        self.story.ended(Met::done(at_ms * 1_000_000), end, &self.sink);
        self.seen()
    }

    /// What was emitted since the last look, in short.
    fn seen(&mut self) -> Vec<String> {
        let ms = |stamp: &Stamp| stamp.ns / 1_000_000;
        let mut texts = Vec::new();
        while let Ok(seen) = self.seen.try_recv() {
            assert_eq!((seen.source, seen.event.flow()), (Source::Flow, Some("udp-1")));
            let at = ms(&seen.at);
            texts.push(match seen.event {
                Event::Span { by, from, to, answers, .. } => {
                    assert_eq!(at, ms(&to));
                    format!("span {} {}-{} {answers}", by.instance, ms(&from), ms(&to))
                }
                Event::Silence { from, to, unanswered, .. } => {
                    assert_eq!(at, ms(&to));
                    format!("silence {}-{} {unanswered}", ms(&from), ms(&to))
                }
                Event::Refused { until, count, .. } => {
                    format!("refused {at}-{} {count}", ms(&until))
                }
                Event::Unreachable { until, count, .. } => {
                    format!("unreachable {at}-{} {count}", ms(&until))
                }
                Event::FlowFailed { error, .. } => format!("failed {at} {error}"),
                Event::Bye { .. } => format!("bye {at}"),
                Event::Fin { .. } => format!("fin {at}"),
                Event::Reset { .. } => format!("reset {at}"),
                Event::FlowStopped { .. } => format!("stopped {at}"),
                Event::FlowOpened { .. } => format!("opened {at}"),
                other => panic!("unexpected: {other:?}"),
            });
        }
        texts
    }
}

#[test]
fn answers_of_one_instance_are_one_span() {
    let mut scene = Scene::new();
    for n in 1..=5 {
        scene.send(1);
        scene.answer(20 * n, n as u64, OLD);
    }
    assert_eq!(scene.seen(), [""; 0]);
    assert_eq!(scene.end(110, End::Fin), ["span instance-0 20-100 5", "fin 110"]);
}

#[test]
fn another_instance_ends_the_span_and_its_late_answers_begin_none() {
    let mut scene = Scene::new();
    scene.send(4);
    scene.answer(20, 1, OLD);
    assert_eq!(scene.answer(40, 3, NEW), Counted::Yes);
    assert_eq!(scene.answer(45, 2, OLD), Counted::Late);
    assert_eq!(scene.answer(60, 4, NEW), Counted::Yes);
    assert_eq!(scene.seen(), ["span instance-0 20-20 1"]);
    assert_eq!(scene.end(70, End::Stopped), ["span instance-1 40-60 2", "stopped 70"]);
}

#[test]
fn an_instance_that_answers_again_later_has_two_spans() {
    let mut scene = Scene::new();
    scene.send(3);
    scene.answer(20, 1, OLD);
    scene.answer(40, 2, NEW);
    scene.answer(60, 3, OLD);
    assert_eq!(scene.seen(), ["span instance-0 20-20 1", "span instance-1 40-40 1"]);
    assert_eq!(scene.end(70, End::Stopped), ["span instance-0 60-60 1", "stopped 70"]);
}

#[test]
fn a_silence_parts_the_spans_of_one_instance() {
    let mut scene = Scene::new();
    scene.send(1);
    scene.answer(20, 1, OLD);
    scene.send(5);
    scene.answer(120, 6, OLD);
    assert_eq!(scene.seen(), ["span instance-0 20-20 1", "silence 20-120 4"]);
    assert_eq!(scene.end(130, End::Stopped), ["span instance-0 120-120 1", "stopped 130"]);
}

#[test]
fn a_gap_just_below_the_limit_is_no_silence() {
    let mut scene = Scene::new();
    scene.send(2);
    scene.answer(20, 1, OLD);
    scene.answer(119, 2, OLD);
    assert_eq!(scene.end(218, End::Stopped), ["span instance-0 20-119 2", "stopped 218"]);
}

#[test]
fn silence_reaches_from_the_opening_to_the_end_where_nobody_answers() {
    let mut scene = Scene::new();
    scene.send(7);
    assert_eq!(scene.end(150, End::Stopped), ["silence 0-150 7", "stopped 150"]);
}

#[test]
fn refusals_are_one_observation_until_an_answer() {
    let mut scene = Scene::new();
    scene.send(4);
    scene.answer(20, 1, OLD);
    for at in [30, 40, 50] {
        scene.story.refused(Met::done(at * 1_000_000), closed_port(), &scene.sink);
    }
    assert!(scene.story.is_refused());
    assert_eq!(scene.seen(), [""; 0]);
    scene.answer(60, 4, NEW);
    assert_eq!(scene.seen(), ["refused 30-50 3", "span instance-0 20-20 1"]);
    scene.story.refused(Met::done(70_000_000), closed_port(), &scene.sink);
    let seen = scene.end(80, End::Stopped);
    assert_eq!(seen, ["refused 70-70 1", "span instance-1 60-60 1", "stopped 80"]);
}

#[test]
fn refusals_of_ever_new_kinds_do_not_pile_up() {
    let mut scene = Scene::new();
    for n in 0..20 {
        let refusal = Refusal { icmp_code: Some(n), port: false, ..closed_port() };
        scene.story.refused(Met::done(i64::from(n) * 1_000_000), refusal, &scene.sink);
    }
    assert_eq!(scene.seen().len(), 20 - MAX_RUNS);
}

#[test]
fn a_copy_of_an_answer_counts_once() {
    let mut scene = Scene::new();
    scene.send(1);
    scene.answer(20, 1, OLD);
    assert_eq!(scene.answer(21, 1, OLD), Counted::Duplicate);
    assert_eq!(scene.end(30, End::Reset), ["span instance-0 20-20 1", "reset 30"]);
}

#[test]
fn a_local_failure_is_said_once_and_only_the_first_end_counts() {
    let mut scene = Scene::new();
    scene.story.failed(1_000_000, "no buffers".to_owned(), &scene.sink);
    scene.story.failed(2_000_000, "no buffers".to_owned(), &scene.sink);
    assert_eq!(scene.end(3, End::Reset), ["failed 1 no buffers", "reset 3"]);
    assert_eq!(scene.end(4, End::Stopped), [""; 0]);
}

#[test]
fn what_was_met_instead_of_an_answer_is_said() {
    let mut scene = Scene::new();
    scene.send(3);
    assert_eq!(scene.story.why_not_answered().why, "no answer to 3 heartbeats");
    scene.story.refused(Met::done(0), closed_port(), &scene.sink);
    let why = scene.story.why_not_answered().why;
    assert_eq!(why, "Connection refused (os error 111), says 10.0.0.1 (1 times)");
}

/// The times of a span are its first answer's and its last one's: what is between them has no part in it.
#[test]
fn a_span_is_as_exact_as_its_first_and_its_last_answer() {
    let ms = 1_000_000;
    let bound = |readings: &[Met]| {
        let mut scene = Scene::new();
        for (n, met) in readings.iter().enumerate() {
            scene.send(1);
            scene.story.answered(*met, n as u64 + 1, &who(OLD), &scene.sink);
        }
        scene.story.ended(Met::done(90 * ms), End::Stopped, &scene.sink);
        let span = scene.seen.try_recv().unwrap();
        assert!(matches!(span.event, Event::Span { .. }));
        (span.bound, span.plus_minus_ms)
    };
    let stamped = [Met::stamped(10 * ms, 40), Met::stamped(20 * ms, 60), Met::stamped(30 * ms, 50)];
    assert_eq!(bound(&stamped), (Bound::Exact, Some(0.00005)));
    let between = [stamped[0], Met::read(20 * ms), stamped[2]];
    assert_eq!(bound(&between), (Bound::Exact, Some(0.00005)));
    let first = [Met::read(10 * ms), stamped[1], stamped[2]];
    assert_eq!(bound(&first), (Bound::AtMost, Some(0.00005)));
    let last = [stamped[0], stamped[1], Met::read(30 * ms)];
    assert_eq!(bound(&last), (Bound::AtMost, Some(0.00004)));
}

#[test]
fn answers_stamped_in_another_order_than_they_are_read_do_not_go_back() {
    let mut scene = Scene::new();
    scene.send(2);
    scene.answer(21, 1, OLD);
    scene.answer(20, 2, OLD);
    assert_eq!(scene.end(30, End::Stopped), ["span instance-0 21-21 2", "stopped 30"]);
}

#[test]
fn a_fin_is_not_before_the_bye_that_came_with_it() {
    let mut scene = Scene::new();
    scene.send(1);
    scene.answer(20, 1, OLD);
    scene.story.bye(Met::stamped(31_000_000, 40), &scene.sink);
    assert_eq!(scene.end(30, End::Fin), ["bye 31", "span instance-0 20-20 1", "fin 31"]);
}
