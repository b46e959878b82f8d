//! A calibration as Markdown.

use std::fmt::Write as _;

use crate::record::{Calibration, Load, Machine};

/// The page: where and how it was measured, then a table for each load.
pub fn markdown(calibration: &Calibration) -> String {
    let Machine { kernel, processor, processors } = &calibration.machine;
    let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".to_owned());
    let mut text = format!(
        "# How far reported instants are off\n\n\
         Reported instants less the packets' own times, which the kernel took as each left the node \
         that the flows enter by. {}, {} processors ({}), Linux {kernel}, drainwatch {} ({}).\n",
        calibration.at,
        or_unknown(processors.map(|n| n.to_string())),
        or_unknown(processor.clone()),
        calibration.tool.version,
        calibration.tool.commit,
    );
    for load in &calibration.loads {
        // Writing to a string can't fail.
        let _ = write!(text, "\n{}", table(load));
    }
    text
}

fn table(load: &Load) -> String {
    let trials = crate::display::count(load.trials as usize, "trial");
    let compared = match load.one_in {
        1 => "all of them compared".to_owned(),
        n => format!("one flow in {n} compared, by its own port"),
    };
    let mut text = format!(
        "## {0} TCP and {0} UDP flows\n\n{1:.0} heartbeats a second, {trials}, by flows.enter_by = \"{2}\"; \
         {compared}. Milliseconds, without their sign; \"early\" is the most that one was reported before its packet.\n\n\
         | instant | n | median | p99 | maximum | early | not found |\n\
         |---|---:|---:|---:|---:|---:|---:|\n",
        load.flows, load.heartbeats_a_second, load.enter_by
    );
    for of in &load.instants {
        let _ = writeln!(
            text,
            "| {} | {} | {:.3} | {:.3} | {:.3} | {:.3} | {} |",
            of.instant, of.n, of.median_ms, of.p99_ms, of.max_ms, of.early_ms, of.unmatched
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{CALIBRATION_FORMAT, InstantError, Tool};

    #[test]
    fn the_page_of_a_calibration() {
        let of = |instant: &str, n, p99_ms| InstantError {
            instant: instant.to_owned(),
            n,
            unmatched: 1,
            median_ms: 0.02,
            p99_ms,
            max_ms: 1.5,
            early_ms: 0.0,
        };
        let calibration = Calibration {
            format: CALIBRATION_FORMAT.to_owned(),
            at: "2026-11-30T12:00:00Z".to_owned(),
            tool: Tool {
                version: "0.1.0".to_owned(),
                commit: "0123abc".to_owned(),
                dirty: Some(false),
                runner_sha256: String::new(),
                probe_sha256: String::new(),
            },
            machine: Machine { kernel: "6.18.5".to_owned(), processor: None, processors: Some(2) },
            loads: vec![Load {
                flows: 10,
                one_in: 8,
                enter_by: "pod-node".to_owned(),
                heartbeats_a_second: 600.0,
                trials: 10,
                instants: vec![
                    of("tcp-fin", 50, 0.1),
                    of("udp-replacement-first-answer", 100, 0.2),
                ],
            }],
        };
        insta::assert_snapshot!(markdown(&calibration));
    }
}
