//! `--print-config`: prints all effective values as a file, each with its origin.

use super::{
    Loaded, ValueOrigin,
    key::{Key, Setting as _, Shape, table_schema},
    layers::written_default,
    settings::Settings,
};

/// The JSON schema of the file, for editors.
pub(crate) fn schema() -> String {
    let mut schema = table_schema(Settings::KEYS);
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "Configuration of retroscope record".into();
    format!("{schema:#}\n")
}

impl Loaded {
    /// A configuration file with the effective values. A comment names the origin of each value.
    pub(crate) fn printed(&self) -> String {
        let mut lines = Vec::new();
        self.print(Settings::KEYS, "", &mut lines);
        for table in Settings::KEYS {
            let name = table.name();
            if table.shape == Shape::Table && name != "rule" {
                lines.push(format!("\n[{name}]"));
                self.print(table.keys, &name, &mut lines);
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }

    fn print(&self, keys: &[Key], table: &str, lines: &mut Vec<String>) {
        for key in keys {
            let name = key.name();
            let path = match table {
                "" => name.clone(),
                table => format!("{table}.{name}"),
            };
            let value = self.written.get(&path).cloned();
            let Some(value) = value.or_else(|| written_default(key)) else {
                continue;
            };
            let origin = match self.origins.get(&path) {
                Some(ValueOrigin::File { key, .. }) => {
                    let (line, _) = self.text.place(key.start);
                    format!("{}:{line}", self.text.name())
                }
                Some(ValueOrigin::Option(option)) => option.clone(),
                None => "default".to_owned(),
            };
            lines.push(format!("{name} = {value} # {origin}"));
        }
    }
}
