//! Two generated pages of the book: `docs/options.md` from clap's definitions and the keys of the
//! configuration, `docs/api-reference.md` from the OpenAPI document.
//!
//! `UPDATE_GOLDEN=1 cargo test -p retroscope-cli --bin retroscope reference` writes the pages.

use std::{env, fs, iter, path::Path};

use clap::{Arg, Command, CommandFactory as _};
use serde_json::{Map, Value as Json};

use crate::{
    Cli,
    commands::record::{Key, Setting as _, Settings},
};

fn check(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let path = path.join(name);
    let page = format!(
        "<!-- crates/cli/src/reference_tests.rs writes this page, with UPDATE_GOLDEN=1. -->\n\n{page}"
    );
    if env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, page).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(&path).unwrap() == page,
        "docs/{name} is not as the program is: UPDATE_GOLDEN=1 writes it"
    );
}

fn sentences(text: &str) -> String {
    let paragraphs = text.split("\n\n").map(|it| {
        let line = it.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.ends_with(['.', ':', '!', '?']) || line.is_empty() {
            true => line,
            false => line + ".",
        }
    });
    paragraphs
        .collect::<Vec<_>>()
        .join(" ")
        .replace('\\', "\\\\")
}

/// An item of a list. The lines of `text` that begin with `- ` are a list below the item.
fn item(head: &str, text: &str) -> String {
    let (text, list) = text.split_once("\n- ").unwrap_or((text, ""));
    let inner = list.split("\n- ").filter(|it| !it.is_empty());
    let inner: String = inner.map(|it| format!("  - {}\n", sentences(it))).collect();
    let colon = if text.is_empty() { "" } else { ": " };
    format!("- {head}{colon}{}\n{inner}", sentences(text))
}

mod options {
    use super::*;

    /// Clap's help heading of the options that select a recorder.
    const RECORDER: &str = "Recorder";

    /// The names of an option with its value, as Markdown: `-w`, `--write DIR`.
    fn names(arg: &Arg) -> String {
        let short = arg.get_short().map(|it| format!("-{it}"));
        let long = arg.get_long().map(|it| format!("--{it}"));
        let takes_value = arg.get_action().takes_values();
        let values = arg.get_value_names().filter(|_| takes_value);
        let values = values.unwrap_or_default().iter().map(|it| it.as_str());
        let value = values.collect::<Vec<_>>().join(" ");
        let mut names: Vec<String> = short.into_iter().chain(long).collect();
        match names.last_mut() {
            Some(last) if !value.is_empty() => last.push_str(&format!(" {value}")),
            Some(_) => {}
            None => names.push(value),
        }
        let names = names.iter().map(|it| format!("`{it}`"));
        names.collect::<Vec<_>>().join(", ")
    }

    fn help(arg: &Arg) -> String {
        let help = arg.get_long_help().or(arg.get_help());
        help.map(ToString::to_string).unwrap_or_default()
    }

    fn option(arg: &Arg) -> String {
        let mut text = sentences(&help(arg));
        let values: Vec<String> =
            match arg.get_action().takes_values() && !arg.is_hide_possible_values_set() {
                true => arg
                    .get_possible_values()
                    .iter()
                    .map(|it| format!("`{}`", it.get_name()))
                    .collect(),
                false => Vec::new(),
            };
        if !values.is_empty() {
            text.push_str(&format!(" One of {}.", values.join(", ")));
        }
        let defaults = arg.get_default_values().iter();
        let defaults: Vec<String> = defaults
            .map(|it| it.to_string_lossy().into_owned())
            .collect();
        if arg.get_action().takes_values() && !defaults.is_empty() {
            text.push_str(&format!(" Default: `{}`.", defaults.join(" ")));
        }
        format!("- {}: {text}\n", names(arg))
    }

    /// The form of a key's value in words, from its JSON schema.
    fn form(schema: &Json) -> String {
        if let Some(one) = schema["anyOf"].get(0) {
            return format!("{} or a list", form(one));
        }
        if let Some(choices) = schema["enum"].as_array() {
            let choices = choices
                .iter()
                .map(|it| format!("`{}`", it.as_str().unwrap()));
            return choices.collect::<Vec<_>>().join(", ");
        }
        let pattern = schema["pattern"].as_str().unwrap_or_default();
        let is_boolean = schema["type"].to_string().contains("boolean");
        let form = match pattern {
            _ if is_boolean && schema["type"].is_array() => "`true` or N",
            _ if is_boolean => "`true` or `false`",
            it if it.contains("ns|") => "TIME",
            it if it.contains("kKmM") => "SIZE",
            "^[0-9]+$" => "N",
            _ => "text",
        };
        form.to_owned()
    }

    /// Appends the keys of a table to `page`. With `commands`, also appends the headings of the
    /// sections, and the flags of these commands.
    fn keys(keys: &[Key], commands: &[&Command], page: &mut String) {
        let mut section = "";
        for key in keys.iter().filter(|key| key.keys.is_empty()) {
            if !commands.is_empty() && section != key.section {
                section = key.section;
                page.push_str(&format!("\n### {section}\n\n"));
            }
            let flag = commands.iter().find_map(|command| {
                let mut args = command.get_arguments();
                let arg = args.find(|arg| help(arg) == key.help())?;
                let only = if command.get_name() == "flows" {
                    " of `flows`"
                } else {
                    ""
                };
                Some(format!("; {}{only}", names(arg)))
            });
            let form = form(&(key.schema)());
            let (text, default) = (key.help(), key.default);
            let text = text.split("\n\n[default").next().unwrap().to_owned();
            let default = match default {
                "" => String::new(),
                default => format!("\n\nDefault: `{default}`."),
            };
            page.push_str(&item(
                &format!("`{}` ({form}{})", key.name(), flag.unwrap_or_default()),
                &(text + &default),
            ));
        }
    }

    fn command(command: &Command, is_key: &dyn Fn(&Arg) -> bool, page: &mut String) {
        let name = command.get_bin_name().unwrap().replace("retroscope ", "");
        let about = command.get_long_about().or(command.get_about());
        page.push_str(&format!(
            "\n## {name}\n\n{}\n\n",
            sentences(&about.unwrap().to_string())
        ));
        let args: Vec<&Arg> = command
            .get_arguments()
            .filter(|arg| !arg.is_hide_set())
            .collect();
        let is_own = |arg: &&&Arg| {
            !is_key(arg) && arg.get_help_heading() != Some(RECORDER) && arg.get_id() != "help"
        };
        let lines: String = args.iter().filter(is_own).map(|arg| option(arg)).collect();
        page.push_str(&lines);
        if args.iter().any(|arg| is_key(arg)) {
            page.push_str("\nThe [keys](#keys-of-the-configuration) name the other options.\n");
        }
        if args
            .iter()
            .any(|arg| arg.get_help_heading() == Some(RECORDER))
        {
            page.push_str("\nThe options of [a recorder's address](#options-of-a-recorders-address) as well.\n");
        }
        if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
            for part in after.to_string().trim().split("\n\n") {
                page.push_str(&example_or_text(part));
            }
        }
    }

    /// Formats a paragraph after a command's options. Indented lines become code.
    fn example_or_text(part: &str) -> String {
        let (code, text): (Vec<&str>, Vec<&str>) =
            part.lines().partition(|it| it.starts_with("  "));
        let code = code
            .iter()
            .map(|it| format!("$ {}\n", it.trim()))
            .collect::<String>();
        let text = match text.is_empty() {
            true => String::new(),
            false => format!("\n{}\n", sentences(&text.join(" "))),
        };
        match code.as_str() {
            "" => text,
            code => format!("{text}\n```console\n{code}```\n"),
        }
    }

    #[test]
    fn the_reference_of_options_is_the_programs() {
        let mut program = Cli::command();
        program.build();
        let mut all = Vec::new();
        let mut waiting: Vec<&Command> = program.get_subcommands().collect();
        waiting.reverse();
        while let Some(next) = waiting.pop() {
            if next.get_name() != "help" && !next.is_hide_set() {
                all.push(next);
                waiting.extend(next.get_subcommands().collect::<Vec<_>>().into_iter().rev());
            }
        }
        let recording: Vec<&Command> = all
            .iter()
            .copied()
            .filter(|it| ["record", "flows"].contains(&it.get_name()))
            .collect();
        let mut page = "# Options and keys\n\n\
            The texts are those of `--help` and of the man pages. TIME is a number with `ns`, `us`, `ms`, `s`, `m`, `h` or `d`. \
            SIZE is a number with `KiB`, `MiB`, `GiB`, `TiB`, or `kB`, `MB`, `GB`, `TB`.\n\n\
            ## Keys of the configuration\n\n\
            `record` and `flows` read these keys from a [file](configuration.md) and from `--set KEY=VALUE`. \
            If a key has an option, the option is named after the form of the value.\n".to_owned();
        keys(Settings::KEYS, &recording, &mut page);
        for table in Settings::KEYS.iter().filter(|key| !key.keys.is_empty()) {
            let name = table.name();
            let name = if name == "rule" {
                format!("[{name}]")
            } else {
                name
            };
            page.push_str(&format!(
                "\n### Table [{name}]\n\n{}\n\n",
                sentences(&table.help())
            ));
            keys(table.keys, &recording[..0], &mut page);
        }
        let every = Settings::KEYS
            .iter()
            .flat_map(|key| iter::once(key).chain(key.keys));
        let helps: Vec<String> = every.map(Key::help).collect();
        for next in &all {
            let is_recording = recording.iter().any(|it| it.get_name() == next.get_name());
            let is_key = |arg: &Arg| is_recording && helps.contains(&help(arg));
            command(next, &is_key, &mut page);
        }
        page.push_str("\n## Options of a recorder's address\n\n");
        let status = program.find_subcommand("status").unwrap().get_arguments();
        let remote = status.filter(|arg| arg.get_help_heading() == Some(RECORDER));
        page.extend(remote.map(option));
        check("options.md", &page);
    }
}

mod api {
    use super::*;

    const SCHEMAS: &str = "#/components/schemas/";

    /// Schemas that have a separate section, and its heading.
    const SECTIONS: [(&str, &str); 2] = [
        ("ProblemType", "Problem types"),
        ("RecorderEvent", "Events"),
    ];

    /// The schema of bodies that are bytes, such as capture files.
    const BYTES: &str = "Binary";

    fn text<'a>(value: &'a Json, name: &str) -> &'a str {
        value[name].as_str().unwrap_or_default()
    }

    fn link(name: &str) -> String {
        if name == BYTES {
            return "bytes".to_owned();
        }
        let section = SECTIONS.iter().find(|it| it.0 == name);
        let heading = section.map_or(name, |it| it.1);
        format!("[{name}](#{})", heading.to_lowercase().replace(' ', "-"))
    }

    fn parts(schema: &Json) -> Vec<&Json> {
        let parts = ["allOf", "anyOf", "oneOf"]
            .iter()
            .find_map(|it| schema[it].as_array());
        parts.map_or_else(|| vec![schema], |parts| parts.iter().collect())
    }

    /// The type of a schema in words.
    fn kind(schema: &Json) -> String {
        if let Some(name) = schema["$ref"].as_str() {
            return link(name.strip_prefix(SCHEMAS).unwrap());
        }
        if let [first, rest @ ..] = &*parts(schema)
            && !rest.is_empty()
        {
            let all = iter::once(first).chain(rest).map(|it| kind(it));
            let (null, other): (Vec<_>, Vec<_>) = all.partition(|it| it == "`null`");
            return [other, null].concat().join(" or ");
        }
        if let Some(values) = schema["enum"].as_array() {
            let values = values
                .iter()
                .map(|it| format!("`{}`", it.as_str().unwrap()));
            return values.collect::<Vec<_>>().join(", ");
        }
        let kinds = match &schema["type"] {
            Json::Array(kinds) => kinds.clone(),
            kind => vec![kind.clone()],
        };
        let kinds = kinds.iter().map(|it| match it.as_str().unwrap_or("any") {
            "null" => "`null`".to_owned(),
            "array" => format!("list of {}", kind(&schema["items"])),
            "object" if schema["additionalProperties"].is_object() => {
                format!("object of {}", kind(&schema["additionalProperties"]))
            }
            other => other.to_owned(),
        });
        let mut kind = kinds.collect::<Vec<_>>().join(" or ");
        let bound = |name: &str| schema[name].as_i64();
        match (bound("minimum"), bound("maximum")) {
            (Some(0) | None, None) => {}
            (Some(least), None) => kind.push_str(&format!(", {least} or more")),
            (least, Some(most)) => kind.push_str(&format!(", {} to {most}", least.unwrap_or(0))),
        }
        kind
    }

    fn fields(schema: &Json, indent: &str) -> String {
        let none = Map::new();
        let required = schema["required"].as_array();
        let fields = schema["properties"].as_object().unwrap_or(&none).iter();
        let lines = fields.map(|(name, field)| {
            let is_required = required.is_some_and(|it| it.iter().any(|it| it == name));
            let optional = if is_required { "" } else { ", optional" };
            let about = iter::once(field)
                .chain(parts(field))
                .map(|it| text(it, "description"));
            let about = about
                .into_iter()
                .find(|it| !it.is_empty())
                .unwrap_or_default();
            item(&format!("`{name}` ({}{optional})", kind(field)), about)
        });
        let lines: String = lines.collect();
        lines
            .lines()
            .map(|line| format!("{indent}{line}\n"))
            .collect()
    }

    fn about(description: &str) -> String {
        let (text, list) = description.split_once("\n- ").unwrap_or((description, ""));
        let paragraphs = text
            .trim()
            .split("\n\n")
            .map(|it| format!("\n{}\n", sentences(it)));
        let items = list.split("\n- ").filter(|it| !it.is_empty());
        let items: String = items.map(|it| format!("- {}\n", sentences(it))).collect();
        let gap = if items.is_empty() { "" } else { "\n" };
        paragraphs.collect::<String>() + gap + &items
    }

    fn schema(heading: &str, schema: &Json, page: &mut String) {
        page.push_str(&format!(
            "\n{heading}\n{}",
            about(text(schema, "description"))
        ));
        if let Some(variants) = schema["oneOf"].as_array() {
            page.push('\n');
            for variant in variants {
                if variant["$ref"].is_string() {
                    page.push_str(&format!("- {}\n", kind(variant)));
                    continue;
                }
                let properties = variant["properties"].as_object();
                let mut values = properties.iter().flat_map(|it| it.values());
                let tag = values.find_map(|it| it["enum"].get(0)?.as_str());
                let name = variant["title"].as_str().or(tag).unwrap();
                page.push_str(&item(&format!("`{name}`"), text(variant, "description")));
                let parts = parts(variant);
                let inner = parts.iter().map(|it| match it["$ref"].is_string() {
                    true => format!("  - all fields of {}\n", kind(it)),
                    false => fields(it, "  "),
                });
                page.extend(inner);
            }
            return;
        }
        let values = schema["enum"]
            .as_array()
            .is_some_and(|it| !text(schema, "description").contains(it[0].as_str().unwrap()));
        if values {
            page.push_str(&format!("\nValues: {}\n", kind(schema)));
        }
        let all: String = parts(schema)
            .iter()
            .map(|part| match part["$ref"].is_string() {
                true => format!("- all fields of {}\n", kind(part)),
                false => fields(part, ""),
            })
            .collect();
        if !all.is_empty() {
            page.push_str(&format!("\n{all}"));
        }
    }

    fn operation(method: &str, path: &str, operation: &Json, page: &mut String) {
        page.push_str(&format!("\n### {} {path}\n", method.to_uppercase()));
        page.push_str(&about(text(operation, "summary")));
        if !text(operation, "description").is_empty() {
            page.push_str(&about(text(operation, "description")));
        }
        page.push('\n');
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let place = text(parameter, "in");
            let place = if place == "query" {
                ""
            } else {
                &format!("{place}, ")
            };
            let head = format!(
                "`{}` ({place}{})",
                text(parameter, "name"),
                kind(&parameter["schema"])
            );
            page.push_str(&item(&head, text(parameter, "description")));
        }
        let content = |body: &Json| {
            let kinds = body["content"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(media, body)| {
                    let kind = kind(&body["schema"]);
                    format!("{kind} as `{media}`")
                });
            kinds.collect::<Vec<_>>().join(", or ")
        };
        if operation["requestBody"].is_object() {
            page.push_str(&format!("- Body: {}\n", content(&operation["requestBody"])));
        }
        for (status, response) in operation["responses"].as_object().unwrap() {
            if !status.ends_with("XX") {
                let body = content(response);
                let body = if body.is_empty() {
                    "no body".to_owned()
                } else {
                    body
                };
                page.push_str(&item(
                    &format!("{status} ({body})"),
                    text(response, "description"),
                ));
            }
        }
    }

    #[test]
    fn the_reference_of_the_api_is_the_documents() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../api/openapi.json");
        let document: Json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let mut page = format!(
            "# API reference\n\n[HTTP API](api.md) describes access, queries and dumps. \
             The source of this page is [openapi.json](../crates/api/openapi.json).\n\n{}\n\
             ## Operations\n\n| operation | role | |\n|---|---|---|\n",
            text(&document["info"], "description")
        );
        let paths = document["paths"].as_object().unwrap();
        let all: Vec<_> = paths
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().iter();
                methods.map(move |(method, operation)| (method, path, operation))
            })
            .collect();
        for (method, path, operation) in &all {
            let anchor = format!("{method} {path}")
                .replace(['/', '{', '}', '.'], "")
                .replace(' ', "-");
            let (role, summary) = (text(operation, "x-role"), text(operation, "summary"));
            let line = format!(
                "| [`{} {path}`](#{anchor}) | {role} | {summary} |\n",
                method.to_uppercase()
            );
            page.push_str(&line);
        }
        for (method, path, one) in all {
            operation(method, path, one, &mut page);
        }
        let schemas = &document["components"]["schemas"];
        for (name, heading) in SECTIONS {
            schema(&format!("## {heading}"), &schemas[name], &mut page);
        }
        page.push_str("\n## Types\n");
        for (name, one) in schemas.as_object().unwrap() {
            if name != BYTES && SECTIONS.iter().all(|it| it.0 != name) {
                schema(&format!("### {name}"), one, &mut page);
            }
        }
        check("api-reference.md", &page);
    }
}
