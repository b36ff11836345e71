//! Help, default and JSON schema of each key of the configuration. The structs of `settings` are
//! the source of help and defaults; the types of the fields give the schemas.

use serde_json::{Map, Value as Json, json};

/// A key of a table of the configuration.
#[derive(Debug)]
pub(crate) struct Key {
    /// The name of the struct's field.
    field: &'static str,
    /// The heading in help and reference.
    pub(crate) section: &'static str,
    /// The doc comment of the struct's field.
    doc: &'static str,
    /// The default as text, or empty.
    pub(crate) default: &'static str,
    pub(crate) shape: Shape,
    /// If the value is a table: the keys of this table. Otherwise empty.
    pub(crate) keys: &'static [Self],
    /// The possible values, if the key has a fixed set of values.
    pub(crate) choices: &'static [&'static str],
    pub(crate) schema: fn() -> Json,
}

/// How many values a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// True or false.
    Switch,
    One,
    /// One value, or a list.
    List,
    /// A table with its own keys, or an array of tables.
    Table,
}

impl Key {
    pub(crate) const fn new<V: Setting>(
        field: &'static str,
        section: &'static str,
        doc: &'static str,
        default: &'static str,
    ) -> Self {
        Self {
            field,
            section,
            doc,
            default,
            shape: V::SHAPE,
            keys: V::KEYS,
            choices: V::CHOICES,
            schema: V::schema,
        }
    }

    /// The name in the file.
    pub(crate) fn name(&self) -> String {
        self.field.replace('_', "-")
    }

    /// The first paragraph of the help: a line.
    pub(crate) fn summary(&self) -> String {
        self.paragraphs().next().unwrap_or_default()
    }

    /// The whole help. Its paragraphs are not wrapped.
    pub(crate) fn help(&self) -> String {
        let mut help: Vec<String> = self.paragraphs().collect();
        if !self.default.is_empty() {
            help.push(format!("[default: {}]", self.default));
        }
        help.join("\n\n")
    }

    fn paragraphs(&self) -> impl Iterator<Item = String> {
        let paragraphs = self.doc.split("\n \n").flat_map(|it| it.split("\n\n"));
        paragraphs.map(|it| it.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// The type of a key's value.
pub(crate) trait Setting: PartialEq {
    const SHAPE: Shape = Shape::One;
    const KEYS: &'static [Key] = &[];
    const CHOICES: &'static [&'static str] = &[];

    /// The value of a key that is not given, from the default's text.
    fn unset(text: &str) -> Self;

    /// The JSON schema of the value.
    fn schema() -> Json;

    /// Adds the names of the keys whose values differ. `name` is the key of `self`.
    fn differing(&self, other: &Self, name: &str, names: &mut Vec<String>) {
        if self != other {
            names.push(name.to_owned());
        }
    }
}

/// The schema of a table with these keys.
pub(crate) fn table_schema(keys: &[Key]) -> Json {
    let property = |key: &Key| {
        let mut schema = (key.schema)();
        schema["description"] = key.help().into();
        (key.name(), schema)
    };
    let properties: Map<String, Json> = keys.iter().map(property).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// Declares a struct whose fields are keys, and implements [`Setting`] for the struct, with a
/// [`Key`] for each field. A field's doc comment becomes the help of its key.
macro_rules! settings {
    ($(#[$meta:meta])* $name:ident { $($section:literal { $(
        $(#[doc = $doc:literal])* $field:ident: $type:ty $(= $default:literal)?,
    )* })* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        #[serde(expecting = "a table")]
        pub(crate) struct $name { $($( $(#[doc = $doc])* pub(crate) $field: $type, )*)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($( $field: Setting::unset(concat!("" $(, $default)?)), )*)* }
            }
        }

        impl Setting for $name {
            const SHAPE: super::key::Shape = super::key::Shape::Table;
            const KEYS: &'static [Key] = &[$($( Key::new::<$type>(
                stringify!($field),
                $section,
                concat!($($doc, "\n"),*),
                concat!("" $(, $default)?),
            ), )*)*];

            fn unset(_: &str) -> Self {
                Self::default()
            }

            fn schema() -> serde_json::Value {
                table_schema(Self::KEYS)
            }

            fn differing(&self, other: &Self, name: &str, names: &mut Vec<String>) {
                let mut keys = Self::KEYS.iter().map(|key| match name {
                    "" => key.name(),
                    table => format!("{table}.{}", key.name()),
                });
                $($( self.$field.differing(&other.$field, &keys.next().unwrap_or_default(), names); )*)*
            }
        }
    };
}
pub(super) use settings;
