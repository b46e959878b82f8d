//! What becomes of dials, whatever they meet and in whatever order that is known.

use proptest::prelude::*;
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::observation::Seen;

const MS: i64 = 1_000_000;

fn by(instance: &str) -> Met {
    let text = instance.to_owned();
    Met::accepted(Arc::new(Identity { pod: text.clone(), uid: text.clone(), instance: text }))
}

/// A dial every 20 ms, each known a millisecond later.
fn dials(met: impl IntoIterator<Item = Met>) -> Vec<Dial> {
    let dial = |(number, met)| {
        let started_ns = number as i64 * 20 * MS;
        Dial { started_ns, connected_ns: None, known_ns: started_ns + MS, met }
    };
    met.into_iter().enumerate().map(dial).collect()
}

/// What is told of these dials, known in this order.
fn told(dials: &[Dial], order: &[usize], boundary_ns: Option<i64>) -> Vec<Seen> {
    let (sink, mut seen) = unbounded_channel();
    let mut ledger = Ledger::new(Protocol::Tcp, sink);
    if boundary_ns.is_some() {
        ledger.hold();
    }
    let numbers: Vec<_> = dials.iter().map(|_| ledger.begin()).collect();
    let (half, rest) = order.split_at(order.len() / 2);
    half.iter().for_each(|index| ledger.known(numbers[*index], dials[*index].clone()));
    ledger.release(boundary_ns);
    rest.iter().for_each(|index| ledger.known(numbers[*index], dials[*index].clone()));
    ledger.finish();
    std::iter::from_fn(|| seen.try_recv().ok()).collect()
}

fn in_order(dials: &[Dial]) -> Vec<Seen> {
    told(dials, &(0..dials.len()).collect::<Vec<_>>(), None)
}

/// Outcome, first start and last start in milliseconds, count.
fn short(seen: &[Seen]) -> Vec<(DialOutcome, i64, i64, u64)> {
    let of = |seen: &Seen| match &seen.event {
        Event::Dials { kind, from, to, count, .. } => {
            (kind.outcome, from.ns / MS, to.ns / MS, *count)
        }
        other => panic!("{other:?}"),
    };
    seen.iter().map(of).collect()
}

use DialOutcome::{Accepted, Unanswered};

#[test]
fn a_boring_stretch_is_one_observation_however_many_pods_share_it() {
    let pods = ["a", "b", "c"].map(by);
    let many = (0..30_000).map(|n: usize| pods[(n * 7 + n / 5) % 3].clone());
    let seen = in_order(&dials(many));
    assert_eq!(seen.len(), 3);
    assert_eq!(short(&seen).iter().map(|(.., count)| count).sum::<u64>(), 30_000);
}

#[test]
fn an_outage_divides_what_was_accepted() {
    let lost = || Met::only(Unanswered);
    let met = (0..200).map(|n| if (50..100).contains(&n) { lost() } else { by("a") });
    assert_eq!(
        short(&in_order(&dials(met))),
        [(Accepted, 0, 980, 50), (Unanswered, 1000, 1980, 50), (Accepted, 2000, 3980, 100)]
    );
}

#[test]
fn no_stretch_reaches_across_the_boundary_whenever_it_is_told() {
    let all = dials((0..100).map(|_| by("a")));
    let order: Vec<_> = (0..100).collect();
    let seen = told(&all, &order, Some(600 * MS));
    assert_eq!(short(&seen), [(Accepted, 0, 580, 30), (Accepted, 600, 1980, 70)]);
}

#[test]
fn a_boundary_after_the_last_dial_changes_nothing() {
    let all = dials((0..10).map(|_| by("a")));
    let seen = told(&all, &(0..10).collect::<Vec<_>>(), Some(i64::MAX));
    assert_eq!(short(&seen), [(Accepted, 0, 180, 10)]);
}

#[test]
fn stretches_are_bounded() {
    // 40 of each in turn, so that each pod's dials lie apart.
    let pods = ["a", "b"].map(by);
    let met = (0..100_000).map(|n: usize| pods[n / 40 % 2].clone());
    let seen = in_order(&dials(met));
    assert!(seen.len() <= MAX_STRETCHES, "{}", seen.len());
    assert_eq!(short(&seen).iter().map(|(.., count)| count).sum::<u64>(), 100_000);
}

fn any_met() -> impl Strategy<Value = Met> {
    let refusal =
        |port| Refusal { port, sender: None, icmp_type: Some(3), icmp_code: Some(3), errno: 111 };
    prop_oneof![
        4 => Just(by("a")),
        2 => Just(by("b")),
        1 => any::<bool>().prop_map(move |port| Met::refused(refusal(port))),
        1 => Just(Met::only(Unanswered)),
        1 => Just(Met::failed_here("no ports")),
    ]
}

proptest! {
    #[test]
    fn counts_add_up_and_the_order_in_which_they_are_known_changes_nothing(
        met in prop::collection::vec((any_met(), 0..200usize), 0..12),
        boundary_ms in prop::option::of(-100..20_000i64),
        seed in any::<u64>(),
    ) {
        let met = met.into_iter().flat_map(|(met, count)| std::iter::repeat_n(met, count));
        let mut all = dials(met);
        for (n, dial) in all.iter_mut().enumerate() {
            dial.known_ns += (n as i64 * 37 % 50) * MS;
        }
        let boundary_ns = boundary_ms.map(|ms| ms * MS);
        let mut shuffled: Vec<usize> = (0..all.len()).collect();
        shuffled.sort_by_key(|n| (*n as u64 + 1).wrapping_mul(seed | 1));
        let seen = told(&all, &shuffled, boundary_ns);
        let plain = told(&all, &(0..all.len()).collect::<Vec<_>>(), boundary_ns);
        prop_assert_eq!(&seen, &plain);
        let of = |kind: &DialKind| {
            let same = |dial: &&Dial| dial.met.outcome == kind.outcome
                && dial.met.by.as_deref() == kind.by.as_ref();
            all.iter().filter(same).count() as u64
        };
        let mut counts = std::collections::BTreeMap::new();
        for one in &seen {
            let Event::Dials { kind, from, to, count, .. } = &one.event else { unreachable!() };
            prop_assert!(from.ns <= to.ns && to.ns <= one.at.ns);
            if let Some(boundary_ns) = boundary_ns {
                prop_assert!(to.ns < boundary_ns || from.ns >= boundary_ns);
            }
            let key = (kind.outcome, kind.by.as_ref().map(|by| by.uid.clone()));
            counts.entry(key).or_insert((0, of(kind))).0 += count;
        }
        for (key, (told, made)) in &counts {
            prop_assert_eq!(told, made, "{:?}", key);
        }
        let sum: u64 = counts.values().map(|(told, _)| told).sum();
        prop_assert_eq!(sum, all.len() as u64);
    }
}
