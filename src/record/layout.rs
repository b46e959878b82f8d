//! How a record's JSON is laid out: a line a key, a line an observation, a line a flow.
//!
//! Takes anything that serialises; knows depths, not names: what lies deeper than two levels stands
//! on its line. So a record can be read, searched by line and compared.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::Formatter;

/// Containers that lie deeper than this stand on one line.
const DEPTH: usize = 2;

/// Writes the JSON text, with a newline at its end, as it is made: a record of thousands of flows has tens of
/// megabytes.
pub fn write<T: Serialize>(mut to: impl Write, value: &T) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(&mut to, Lines::default());
    value.serialize(&mut serializer)?;
    to.write_all(b"\n")
}

#[derive(Default)]
struct Lines {
    depth: usize,
    /// Whether the container that is closed next has anything in it.
    filled: bool,
}

impl Lines {
    fn open<W: ?Sized + Write>(&mut self, w: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        w.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, w: &mut W, bracket: &[u8]) -> io::Result<()> {
        let apart = self.apart() && self.filled;
        self.depth -= 1;
        self.filled = true;
        if apart {
            self.line(w)?;
        }
        w.write_all(bracket)
    }

    fn item<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        if !first {
            w.write_all(if self.apart() { b"," } else { b", " })?;
        }
        if self.apart() { self.line(w) } else { Ok(()) }
    }

    fn apart(&self) -> bool {
        self.depth <= DEPTH
    }

    fn line<W: ?Sized + Write>(&self, w: &mut W) -> io::Result<()> {
        w.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| w.write_all(b"  "))
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.open(w, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.close(w, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.item(w, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.open(w, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.close(w, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.item(w, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn to_vec(value: &impl Serialize) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes, value).unwrap();
        bytes
    }

    #[test]
    fn two_levels_are_spread_and_the_rest_stands_on_a_line() {
        let value = json!({
            "config": {"flows": {"tcp": 10, "udp": []}, "none": {}},
            "observations": [{"t_ms": 1.5, "what": "bye"}, {"t_ms": 2.0}],
            "warnings": [],
        });
        insta::assert_snapshot!(String::from_utf8(to_vec(&value)).unwrap(), @r#"
        {
          "config": {
            "flows": {"tcp": 10, "udp": []},
            "none": {}
          },
          "observations": [
            {"t_ms": 1.5, "what": "bye"},
            {"t_ms": 2.0}
          ],
          "warnings": []
        }
        "#);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_layout_changes_nothing_but_white_space(value in any_json()) {
            let read: Value = serde_json::from_slice(&to_vec(&value)).unwrap();
            prop_assert_eq!(read, value);
        }
    }
}
