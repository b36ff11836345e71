//! `--print-config`: prints all effective values as a file, each with its origin.

use super::{
    EXCLUSIVE, Loaded, OF_POST, ValueOrigin,
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

    /// Whether a file may contain the default of a key in addition to the given values.
    fn takes_default(&self, key: &str) -> bool {
        let is_given = |key: &str| {
            let value = self.written.get(key);
            value.is_some_and(|value| value != "false" && value != "[]")
        };
        let mut partners = EXCLUSIVE.iter().filter(|pair| pair.contains(&key));
        let is_excluded = partners.any(|pair| pair.iter().any(|it| *it != key && is_given(it)));
        let lacks_post = OF_POST.contains(&key) && !is_given("post");
        !is_excluded && !lacks_post
    }

    fn print(&self, keys: &[Key], table: &str, lines: &mut Vec<String>) {
        for key in keys {
            let name = key.name();
            let path = match table {
                "" => name.clone(),
                table => format!("{table}.{name}"),
            };
            let value = self.written.get(&path).cloned();
            let default = || written_default(key).filter(|_| self.takes_default(&path));
            let Some(value) = value.or_else(default) else {
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
