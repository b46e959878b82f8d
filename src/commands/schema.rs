//! `drainwatch schema`

use clap::ValueEnum;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

use super::{Exit, say};
use crate::cli::SchemaArgs;
use crate::config;
use crate::record::{RUN_FORMAT, Run, TRIAL_FORMAT, Trial, write_atomic};

/// What there is a JSON Schema of, and the page of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// A scenario's TOML
    Scenario,
    /// A matrix's TOML
    Matrix,
    /// A trial's record
    Record,
    /// A run's record, run.json
    Run,
    /// Every key of scenarios, as a page in Markdown
    Keys,
}

/// Those of which there is a JSON Schema.
const SCHEMAS: [Name; 4] = [Name::Scenario, Name::Matrix, Name::Record, Name::Run];

/// Runs the command: schemas on stdout, or each as a file in a folder.
pub fn run(args: &SchemaArgs) -> Exit {
    let names = match &args.name {
        Some(name) => std::slice::from_ref(name),
        None => &SCHEMAS,
    };
    if let Some(folder) = &args.output {
        for name in names {
            let kind = if *name == Name::Keys { "md" } else { "json" };
            let file = folder.join(format!("{}.{kind}", name.word()));
            if let Err(error) = write_atomic(&file, name.text().as_bytes()) {
                return say::error(Exit::Files, &error);
            }
        }
        return Exit::Success;
    }
    let text = match args.name {
        Some(name) => name.text(),
        None => {
            let all =
                names.iter().filter_map(|name| Some((name.word().to_owned(), name.schema()?)));
            pretty(&Value::Object(all.collect()))
        }
    };
    say::print(&text)
}

fn pretty(schema: &Value) -> String {
    format!("{schema:#}\n")
}

impl Name {
    /// As on the command line, and the file's stem.
    fn word(self) -> &'static str {
        match self {
            Self::Scenario => "scenario",
            Self::Matrix => "matrix",
            Self::Record => "record",
            Self::Run => "run",
            Self::Keys => "keys",
        }
    }

    fn text(self) -> String {
        self.schema().map_or_else(config::keys_page, |schema| pretty(&schema))
    }

    /// `None` of what is a page.
    fn schema(self) -> Option<Value> {
        Some(match self {
            Self::Keys => return None,
            Self::Scenario => config::scenario_schema(),
            Self::Matrix => config::matrix_schema(),
            Self::Record => of_record::<Trial>(self, "trial record", TRIAL_FORMAT),
            Self::Run => of_record::<Run>(self, "run record", RUN_FORMAT),
        })
    }
}

/// The schema of what a reader takes: older records lack what their builds did not know, and newer
/// ones of the same version may hold more.
fn of_record<T: JsonSchema>(name: Name, title: &str, format: &str) -> Value {
    const RULES: &str = "\
        Times in _ms are milliseconds from the trigger. What was not measured is null; 0 is a \
        measurement. A key that is missing was not known to the build that wrote the record.";
    let settings = SchemaSettings::draft2020_12().with_transform(plain);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    let about = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let about = format!("{about} {RULES}");
    schema.insert("$id".into(), format!("urn:drainwatch:schema:{}", name.word()).into());
    schema.insert("title".into(), format!("drainwatch {title}").into());
    schema.insert("description".into(), about.into());
    if let Some(property) = schema.pointer_mut("/properties/format") {
        *property = json!({
            "type": "string",
            // A minor version adds, and so stays readable.
            "pattern": format!(r"^{}(\.[0-9]+)?$", format.replace('.', r"\.")),
            "description": format!("The format and its version: {format}"),
        });
    }
    schema.to_value()
}

/// Turns rustdoc into text: a link to an item means nothing outside the code, nor does where a line
/// of it ends.
fn plain(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        let paragraphs: Vec<String> =
            text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect();
        let text_of_json = [("[`", "`"), ("`]", "`"), ("`None`", "null")];
        *text = text_of_json
            .iter()
            .fold(paragraphs.join("\n\n"), |text, (from, to)| text.replace(from, to));
    }
    schemars::transform::transform_subschemas(&mut plain, schema);
}
