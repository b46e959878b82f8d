//! A story as text, for a terminal of a hundred columns.
//!
//! Takes a story; gives text, with colours where they are asked for. What a record says can't move
//! the terminal's cursor.

use std::fmt::Write;

use unicode_width::UnicodeWidthStr;

use super::groups::{Group, Member, ids_in_words};
use super::{Line, Mark, Story, sentences};
use crate::config::shown_text;
use crate::observation::Bound;
use crate::report::words;
use crate::verdict::Fate;

/// As many columns as a line has.
const WIDTH: usize = 100;

/// Before the fate that befell a flow in a line.
const ARROW: &str = "←";

/// Up to so many flows of a group are told of one by one.
const ONE_BY_ONE: usize = 12;

/// The text, with a newline at its end.
pub fn text(story: &Story, colours: bool) -> String {
    let paint = Paint(colours);
    let mut text = paint.bold(&shown_text(&story.title)) + "\n\n";
    let widest = story.facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
    for fact in &story.facts {
        let name = paint.dim(&format!("{:widest$}", fact.name));
        let before = format!("  {name}  ");
        wrap(&mut text, &Place::hanging(&before, widest + 4), &fact.text, str::to_owned);
    }
    lines(&mut text, story, paint);
    if !story.groups.is_empty() {
        text += "\nflows\n";
        story.groups.iter().for_each(|group| self::group(&mut text, group, paint));
    }
    if !story.warnings.is_empty() {
        text += "\nwarnings\n";
        for warning in &story.warnings {
            wrap(&mut text, &Place { before: "  ", first: 2, further: 4 }, warning, str::to_owned);
        }
    }
    text
}

fn lines(text: &mut String, story: &Story, paint: Paint) {
    if story.lines.is_empty() {
        return;
    }
    let rows: Vec<Row> = story.lines.iter().map(Row::of).collect();
    let widest =
        |cell: fn(&Row) -> &String| rows.iter().map(|row| cell(row).width()).max().unwrap_or(0);
    let (links, time, bound, source) = (
        widest(|row| &row.links),
        widest(|row| &row.time).max(2),
        widest(|row| &row.plus_minus),
        widest(|row| &row.source),
    );
    let gap = |width: usize| if width == 0 { 0 } else { width + 2 };
    let indent = 2 + gap(links) + time + gap(bound) + 2 + gap(source);
    let cell = |text: &str, width: usize| {
        if width == 0 { String::new() } else { format!("{text:width$}  ") }
    };
    let header = format!(
        "  {}{:>time$}  {}{}",
        cell(if links > 0 { "#" } else { "" }, links),
        "ms",
        cell("", bound),
        cell(if source > 0 { "seen by" } else { "" }, source)
    );
    let _ = write!(text, "\n{}\n", paint.dim(header.trim_end()));
    for (row, line) in rows.iter().zip(&story.lines) {
        // What was before stands apart.
        if line.mark == Mark::Trigger && line.t_ms > story.lines[0].t_ms {
            text.push('\n');
        }
        let before = format!(
            "  {}{:>time$}  {}{}",
            paint.strong(&cell(&row.links, links)),
            row.time,
            cell(&row.plus_minus, bound),
            paint.dim(&cell(&row.source, source)),
        );
        let end = match (&story.flow, line.mark) {
            (Some(flow), Mark::End) => format!(" {ARROW} {}", flow.fate.name().replace('-', " ")),
            _ => String::new(),
        };
        let said = format!("{}{end}", line.text);
        wrap(text, &Place::hanging(&before, indent), &said, |part| match line.mark {
            Mark::Trigger | Mark::End => paint.bold(part),
            Mark::Gap => paint.warning(part),
            Mark::Event => part.to_owned(),
        });
    }
    legend(text, story, paint);
}

/// What the marks in use mean.
fn legend(text: &mut String, story: &Story, paint: Paint) {
    let any = |holds: fn(&Line) -> bool| story.lines.iter().any(holds);
    let mut legend = format!("ms: milliseconds from {}", story.zero);
    for (used, meaning) in [
        (any(|line| line.bound == Bound::AtMost), "≤: then or before (it was heard of then)"),
        (
            any(|line| line.plus_minus_ms.is_some_and(|pm| pm > 0.0)),
            "±: relating two clocks may put it so far off",
        ),
        (any(|line| line.plus_minus_ms.is_none()), "≈: how exact is not known"),
        (any(|line| !line.links.is_empty()), "#: the links of the chain that led to its end"),
    ] {
        if used {
            legend += &format!("; {meaning}");
        }
    }
    text.push('\n');
    wrap(text, &Place::hanging("  ", 2), &legend, |part| paint.dim(part));
}

/// A line's cells.
struct Row {
    links: String,
    time: String,
    plus_minus: String,
    source: String,
}

impl Row {
    fn of(line: &Line) -> Self {
        let links: Vec<_> = line.links.iter().map(usize::to_string).collect();
        let mut time = words::grouped(line.t_ms, 1);
        let mut plus_minus = String::new();
        match line.plus_minus_ms {
            None => time = format!("≈ {time}"),
            Some(pm) if pm > 0.0 => plus_minus = words::plus_minus(pm),
            Some(_) => {}
        }
        // A gap begins there.
        if line.bound == Bound::AtMost && line.mark != Mark::Gap {
            time = format!("≤ {time}");
        }
        let source = line.source.as_ref().map(words::of).unwrap_or_default();
        Self { links: links.join(","), time, plus_minus, source }
    }
}

fn group(text: &mut String, group: &Group, paint: Paint) {
    let of = format!("{} flow", group.protocol.name());
    let n = sentences::many(group.flows.len() as u64, &of);
    let what = format!("{n} {}", group.fate.name().replace('-', " "));
    let ids = ids_in_words(group.flows.iter().map(|flow| flow.id.as_str()));
    let range = range(&group.flows, group.fate);
    let before = format!("  {}{}", paint.bold(&what), if range.is_empty() { ": " } else { " " });
    let first = 2 + what.width() + if range.is_empty() { 2 } else { 1 };
    let said = if range.is_empty() { ids } else { format!("{range}: {ids}") };
    wrap(text, &Place { before: &before, first, further: 6 }, &said, str::to_owned);
    if let Some(cause) = &group.cause {
        let first = &group.flows[0].id;
        let whose = if group.flows.len() > 1 { format!(" ({first})") } else { String::new() };
        let told = format!("{}{whose}: {}", cause.basis.name(), cause.text);
        wrap(text, &Place::hanging("      ", 6), &told, str::to_owned);
    }
    if (2..=ONE_BY_ONE).contains(&group.flows.len()) {
        let widest = group.flows.iter().map(|flow| flow.id.len()).max().unwrap_or(0);
        let told = |flow: &&Member| !member(flow, group.fate).is_empty();
        for flow in group.flows.iter().filter(told) {
            let told =
                format!("      {:widest$}  {}", shown_text(&flow.id), member(flow, group.fate));
            let _ = writeln!(text, "{}", told.trim_end());
        }
    }
}

/// `from 1,198.8 to 1,210.4 ms`
fn range(flows: &[Member], fate: Fate) -> String {
    let ends = flows.iter().filter_map(|flow| flow.ended_ms);
    let (min, max) = ends
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), end| (min.min(end), max.max(end)));
    let (first, last) = (words::grouped(min, 1), sentences::ms(max));
    match (min.is_finite(), flows.len()) {
        (false, _) => String::new(),
        (true, 1) => format!("at {last}{}", more(&flows[0], fate)),
        (true, _) => format!("from {first} to {last}"),
    }
}

fn member(flow: &Member, fate: Fate) -> String {
    let end = flow.ended_ms.map(|end| format!("{:>12}", sentences::ms(end))).unwrap_or_default();
    format!("{end}{}", more(flow, fate))
}

fn more(flow: &Member, fate: Fate) -> String {
    let outage = flow.outage_ms.map(|ms| format!(", {} without an answer", sentences::ms(ms)));
    // One refusal is what such a flow's end says.
    let refused = flow.refusals > u64::from(fate == Fate::Refused);
    let refused = refused.then(|| format!(", refused {}", sentences::times(flow.refusals)));
    outage.unwrap_or_default() + &refused.unwrap_or_default()
}

/// Where a text begins: what stands before its first line, and how many columns that and the space
/// before its further lines are wide.
struct Place<'a> {
    before: &'a str,
    first: usize,
    further: usize,
}

impl<'a> Place<'a> {
    /// All lines begin in one column.
    fn hanging(before: &'a str, indent: usize) -> Self {
        Self { before, first: indent, further: indent }
    }
}

/// A text in lines that are not too long.
fn wrap(text: &mut String, place: &Place, said: &str, paint: impl Fn(&str) -> String) {
    let mut line = String::new();
    let mut first = true;
    let mut flush = |line: &mut String, first: &mut bool| {
        let further = " ".repeat(place.further);
        let start = if std::mem::take(first) { place.before } else { &further };
        let _ = writeln!(text, "{}", format!("{start}{}", paint(line)).trim_end());
        line.clear();
    };
    let mut words = said.split_whitespace();
    while let Some(word) = words.next() {
        let mut word = shown_text(word);
        // An arrow stays with what it points away from.
        if word == ARROW {
            word = [word.as_str(), words.next().unwrap_or_default()].join(" ");
        }
        let indent = if first { place.first } else { place.further };
        if !line.is_empty() && indent + line.width() + 1 + word.width() > WIDTH {
            flush(&mut line, &mut first);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += &word;
    }
    flush(&mut line, &mut first);
}

/// Colours, or none.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        // Blanks have no colour.
        if self.0 && !text.trim().is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    fn strong(self, text: &str) -> String {
        self.with("1;36", text)
    }

    fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    fn warning(self, text: &str) -> String {
        self.with("33", text)
    }
}
