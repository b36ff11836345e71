//! `--print-config`: prints all effective values as a file, each with its origin.

use retroscope_recorder::{Config, planned_buckets};

use super::{
    super::{args::DUMPS_PER_MINUTE, has_engine},
    EXCLUSIVE, Engine, Loaded, OF_POST, ValueOrigin,
    key::{Key, Setting as _, Shape, table_schema},
    layers::written_default,
    settings::Settings,
};
use crate::{
    memory,
    units::{self, counted},
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
    /// Values that the recorder computes are comments, because some of them depend on the machine.
    pub(crate) fn printed(&self) -> String {
        let mut lines = Vec::new();
        if let Some(threads) = self.capture_threads() {
            lines.push(format!(
                "# {} # computed",
                counted(threads as u64, "capture thread")
            ));
            let buckets = self.buckets(threads);
            lines.extend(buckets.map(|buckets| format!("# {buckets} # computed")));
        }
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

    /// The value in TOML notation that the recorder computes for a key without a value.
    fn computed(&self, key: &str) -> Option<String> {
        Some(match key {
            "ring" => format!("\"{}\"", units::show_size(self.ring_bytes())),
            "sha256" => Config::default().sha256.to_string(),
            "dumps-per-minute" => DUMPS_PER_MINUTE.to_string(),
            _ => return None,
        })
    }

    fn ring_bytes(&self) -> u64 {
        self.settings
            .ring_bytes(memory::default_ring, &mut Vec::new())
    }

    /// Capture threads of all sources. `None`: there is no source, or the number depends on an
    /// interface.
    fn capture_threads(&self) -> Option<usize> {
        let of = &self.settings;
        if !of.read.is_empty() {
            return Some(1);
        }
        if of.interface.is_empty() {
            return None;
        }
        let threads = of.interface.iter().map(|name| match of.engine_of(name) {
            _ if !has_engine(name) => Some(1),
            Engine::Auto | Engine::AfPacket => Some(of.rx_threads.0.0 as usize),
            Engine::Pcap => Some(1),
            Engine::AfXdp | Engine::Dpdk => None,
        });
        let threads: usize = threads.sum::<Option<usize>>()?;
        let limit = of.capture_threads.map(|limit| limit.0.0 as usize);
        Some(limit.map_or(threads, |limit| limit.min(threads)))
    }

    fn buckets(&self, threads: usize) -> Option<String> {
        let config = Config {
            offline: !self.settings.read.is_empty(),
            ring_bytes: self.ring_bytes(),
            ..Config::default()
        };
        let (number, bytes) = planned_buckets(&config, threads)?;
        let size = units::show_size(bytes as u64);
        Some(format!("{number} buckets of {size}"))
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
                let computed = self.computed(&path);
                lines.extend(computed.map(|value| format!("# {name} = {value} # computed")));
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
