//! Sources of packets: keys of `retroscope record` and `retroscope flows`.

use std::{fs, path::Path};

use retroscope_recorder::Config;

use super::{config::Settings, has_engine, is_generator};
use crate::{commands::interface_names, failure::Failure, memory, numa, units};

impl Settings {
    /// The part of the configuration that is about sources, ring and analyzers. Triggers and dumps
    /// keep their defaults. Without the key `ring`, `default_ring` computes the ring size from the
    /// available memory. `notes` receives messages for the user.
    pub(crate) fn input(
        &self,
        default_ring: impl FnOnce(Option<u64>) -> u64,
        notes: &mut Vec<String>,
    ) -> Result<Config, Failure> {
        if self.interface.is_empty() && self.read.is_empty() {
            let list = interface_names();
            return Err(Failure::usage(format!(
                "say what to read: -i IFACE or -r FILE; interfaces: {list}"
            )));
        }
        let offline = !self.read.is_empty();
        let mut numbered = self.interface.iter().enumerate();
        if let Some((_, name)) = numbered.find(|(i, name)| self.interface[..*i].contains(name)) {
            return Err(Failure::usage(format!(
                "-i {name} is given twice: name each interface once"
            )));
        }
        for (key, is_set) in [
            ("rx-threads", self.rx_threads.0.0 > 1),
            ("capture-threads", self.capture_threads.is_some()),
        ] {
            if offline && is_set {
                notes.push(format!("{key}: files are read by one thread"));
            }
        }
        if self.cpus.is_some() && !self.interface.iter().any(|name| has_engine(name)) {
            notes.push("cpus: there is no interface whose threads it could pin".to_owned());
        }
        Ok(Config {
            offline,
            ring_bytes: self.ring_bytes(default_ring, notes),
            numa_node: self.numa_node(notes),
            rx_threads: self.rx_threads.0.0 as usize,
            capture_threads: self.capture_threads.map(|threads| threads.0.0 as usize),
            analyzers: *self.analyzers,
            filter: self.filter_text()?,
            count: self.count.map(|count| count.0.0),
            duration: self.duration.map(|time| *time),
            ..Config::default()
        })
    }

    pub(super) fn ring_bytes(
        &self,
        default: impl FnOnce(Option<u64>) -> u64,
        notes: &mut Vec<String>,
    ) -> u64 {
        let available = memory::available();
        let Some(asked) = self.ring.map(|ring| ring.0.0) else {
            return default(available);
        };
        match available.map(memory::largest_ring) {
            Some(largest) if asked > largest => {
                let (asked, fits) = (units::show_size(asked), units::show_size(largest));
                notes.push(format!(
                    "a ring of {asked} does not fit into the available memory; using {fits}"
                ));
                largest
            }
            _ => asked,
        }
    }

    /// The NUMA node that all sources except generators share. `None`: no common node, or the
    /// machine has only one node.
    fn numa_node(&self, notes: &mut Vec<String>) -> Option<u32> {
        let live = self.interface.iter().filter(|name| !is_generator(name));
        let topology = numa::Topology::read(Path::new("/sys"), live.map(String::as_str));
        let node = topology.common_node();
        if topology.nodes > 1 && topology.are_apart() {
            notes.push(
                "the interfaces are on several NUMA nodes: the ring's memory is on any".to_owned(),
            );
        }
        node
    }

    fn filter_text(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.filter_file else {
            return Ok(self.filter.clone());
        };
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?;
        // Like tcpdump -F: a comment runs from # to the end of its line.
        let lines = text.lines().filter_map(|line| line.split('#').next());
        let text = lines.collect::<Vec<_>>().join(" ");
        Ok(Some(text.trim().to_owned()))
    }

    /// Minimum number of packets that each flow keeps under overload, if tail early drop is on.
    pub(crate) fn tail_drop_min(&self) -> Option<u32> {
        self.ted.and_then(|ted| ted.0.0)
    }
}
