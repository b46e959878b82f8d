//! Tables for spreadsheets and programs: RFC 4180, one header, a stable order of columns.
//!
//! Takes rows of cells; gives bytes. An empty cell is what was not measured, and no cell is
//! anything that a spreadsheet would take for a formula.

use super::ReportError;

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    /// Words: guarded against being taken for a formula.
    Text(String),
    /// A measurement, to the nanosecond where it is in milliseconds.
    Number(f64),
    /// How many.
    Count(u64),
    /// Not measured.
    Empty,
}

impl Cell {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub fn count(count: usize) -> Self {
        Self::Count(count as u64)
    }

    fn render(&self) -> String {
        match self {
            Self::Text(text) => match text.chars().next() {
                // An apostrophe is what spreadsheets themselves take for "this is text".
                Some('=' | '+' | '-' | '@' | '\t' | '\r' | '\n') => format!("'{text}"),
                _ => text.clone(),
            },
            Self::Number(number) => {
                let rounded = (number * 1e6).round() / 1e6;
                // Not "-0", which sums of measurements can come to.
                format!("{}", if rounded == 0.0 { 0.0 } else { rounded })
            }
            Self::Count(count) => count.to_string(),
            Self::Empty => String::new(),
        }
    }
}

impl From<Option<f64>> for Cell {
    fn from(number: Option<f64>) -> Self {
        number.filter(|number| number.is_finite()).map_or(Self::Empty, Self::Number)
    }
}

impl From<Option<String>> for Cell {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Empty, Self::Text)
    }
}

/// The whole file. Each row is as long as the header.
pub(super) fn table(
    file: &'static str,
    header: &[String],
    rows: impl IntoIterator<Item = Vec<Cell>>,
) -> Result<Vec<u8>, ReportError> {
    let failed = |reason: String| ReportError::Render { file, reason };
    let mut writer =
        csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    writer.write_record(header).map_err(|error| failed(error.to_string()))?;
    for row in rows {
        let row = row.iter().map(Cell::render);
        writer.write_record(row).map_err(|error| failed(error.to_string()))?;
    }
    writer.into_inner().map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(cell: Cell) -> String {
        let table = table("t.csv", &["a".into(), "b".into()], [vec![cell, Cell::Empty]]).unwrap();
        String::from_utf8(table).unwrap()
    }

    #[test]
    fn a_number_below_zero_is_a_number_and_nothing_is_an_empty_cell() {
        assert_eq!(one(Cell::Number(-3.75)), "a,b\r\n-3.75,\r\n");
        assert_eq!(one(Cell::Number(-0.0)), "a,b\r\n0,\r\n");
        assert_eq!(one(Cell::Number(0.1 + 0.2)), "a,b\r\n0.3,\r\n");
        assert_eq!(one(Cell::Number(12_345_678.5)), "a,b\r\n12345678.5,\r\n");
        assert_eq!(one(Cell::from(Some(f64::NAN))), "a,b\r\n,\r\n");
    }

    #[test]
    fn text_with_commas_quotes_and_line_breaks_stays_one_cell() {
        assert_eq!(one(Cell::text("a \"b\", c\nd")), "a,b\r\n\"a \"\"b\"\", c\nd\",\r\n");
    }

    proptest! {
        #[test]
        fn no_text_is_a_formula_and_none_is_lost(text in "[=+@\\-\t\r\n\",a]{0,8}") {
            let table = one(Cell::text(text.clone()));
            let mut reader = csv::Reader::from_reader(table.as_bytes());
            let row = reader.records().next().unwrap().unwrap();
            prop_assert!(!row[0].starts_with(['=', '+', '-', '@', '\t', '\r', '\n']));
            prop_assert_eq!(row[0].strip_prefix('\'').unwrap_or(&row[0]), text);
        }
    }
}
