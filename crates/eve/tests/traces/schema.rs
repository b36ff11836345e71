//! The parts of JSON Schema that EVE's schema uses for flows and events.

use serde_json::{Map, Value};

/// A schema that a value is validated against.
pub(crate) struct Schema(pub(crate) Value);

impl Schema {
    /// The faults of a value, with their positions.
    ///
    /// # Panics
    /// If the schema for the value has an unknown keyword or pattern. Also for some wrong types.
    pub(crate) fn faults(&self, value: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        validate(&self.0, value, "", &mut faults);
        faults
    }
}

fn validate(schema: &Value, value: &Value, place: &str, faults: &mut Vec<String>) {
    let mut complain = |what: &str| faults.push(format!("{place}: {what}: {value}"));
    for (keyword, wanted) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "type" if !is_of(wanted.as_str().unwrap(), value) => complain("wrong type"),
            "required" => {
                let names = wanted
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|name| name.as_str().unwrap());
                let missing = names.filter(|name| value.get(name).is_none());
                missing.for_each(&mut complain);
            }
            "minItems" if (value.as_array().unwrap().len() as u64) < wanted.as_u64().unwrap() => {
                complain("too few");
            }
            "pattern" => {
                // The only pattern for values of flows.
                let stamp = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d+[+\-]\d+$";
                assert_eq!(wanted, stamp);
                if !is_stamp(value.as_str().unwrap()) {
                    complain("no stamp");
                }
            }
            "additionalProperties" => {
                assert_eq!(wanted, false);
                let known = schema["properties"].as_object().unwrap();
                let unknown = object(value).keys().filter(|key| !known.contains_key(*key));
                unknown.for_each(|key| complain(key));
            }
            "type" | "minItems" | "properties" | "items" => {}
            "$defs" | "description" | "suricata" => {}
            other => panic!("{place}: the schema has {other}: teach it to the test"),
        }
    }
    if let Some(properties) = schema.get("properties") {
        for (key, value) in object(value) {
            if let Some(schema) = properties.get(key) {
                validate(schema, value, &format!("{place}/{key}"), faults);
            }
        }
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        for value in values {
            validate(items, value, place, faults);
        }
    }
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("no such type: {other}"),
    }
}

fn is_stamp(text: &str) -> bool {
    let form = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "0");
    form(text) == "0000-00-00T00:00:00.000000+0000"
}
