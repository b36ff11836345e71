//! What this host itself uses an interface for, which an engine is about to take away from it.
//!
//! - `links`: what stands on an interface, purely,
//! - `ask`: addresses, routes and links of this network namespace,
//! - `elsewhere`: interfaces of other network namespaces.
//!
//! What cannot be read counts as a use: an engine that takes an interface away has to know that nobody misses it. Other network
//! namespaces are the exception: who may not look into them is told so, and decides.

mod ask;
mod elsewhere;
mod links;

use std::fmt;

use self::links::Above;
use crate::SourceError;

/// Names that a sentence lists; the rest are counted.
const NAMES_MAX: usize = 8;

/// What this host uses an interface for, in words: `has an address, is under eth0.5 (vlan)`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostUse {
    has_address: bool,
    has_route: bool,
    /// What stands on it.
    above: Vec<Above>,
    /// What could not be read, and why.
    unread: Vec<String>,
    /// Why other network namespaces could not be looked into.
    pub unseen: Option<String>,
}

impl HostUse {
    /// What the calling thread's network namespace uses its interface `name` for, and, where this process may look there, what stands on
    /// it in others. Needs no privilege for the former; for the latter CAP_SYS_ADMIN and CAP_SYS_PTRACE, or CAP_NET_ADMIN, with which
    /// less is found.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut found = Self::here(name);
        if let Err(error) = found.search(name) {
            found.missed(error.to_string());
        }
        found
    }

    /// Whether it is used for anything, as far as could be seen. What could not be read counts.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.has_address || self.has_route || !self.above.is_empty() || !self.unread.is_empty()
    }

    /// Why an engine does not take the interface `name` away.
    pub(crate) fn refusal(&self, name: &str, engine: &str) -> SourceError {
        SourceError::Usage(format!(
            "{name} {self}: {engine} takes every packet away from this host, which would cut its connections there. Say \
                 --take-interface if that is meant, or use --engine af-packet"
        ))
    }

    /// What is cut off while the interface `name` is taken away, and what may be that could not be seen, as sentences.
    pub(crate) fn notices(&self, name: &str) -> Vec<String> {
        let is = if self.unread.is_empty() {
            "is"
        } else {
            "may be"
        };
        let cut_off = self
            .is_used()
            .then(|| format!("{name} {self}: all of that {is} cut off while {name} is recorded"));
        let unseen = self.unseen.as_ref().map(|why| {
            format!(
                "{name}: whether a macvlan or VLAN in another network namespace stands on it, and is cut off, cannot be seen: {why}"
            )
        });
        cut_off.into_iter().chain(unseen).collect()
    }
}

/// What it is used for, as a clause behind the interface's name; `is not used` if nothing was found.
impl fmt::Display for HostUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut clauses = Vec::new();
        match (self.has_address, self.has_route) {
            (true, true) => clauses.push("has an address and a route".to_owned()),
            (true, false) => clauses.push("has an address".to_owned()),
            (false, true) => clauses.push("has a route".to_owned()),
            (false, false) => {}
        }
        for (words, is_master) in [("belongs to", true), ("is under", false)] {
            let mut names: Vec<String> = self
                .above
                .iter()
                .filter(|above| above.is_master == is_master)
                .map(named)
                .collect();
            let more = names.len().saturating_sub(NAMES_MAX);
            if more > 0 {
                names.truncate(NAMES_MAX);
                names.push(format!("{more} more"));
            }
            if let Some(last) = names.pop() {
                let list = match names.join(", ") {
                    start if start.is_empty() => last,
                    start => format!("{start} and {last}"),
                };
                clauses.push(format!("{words} {list}"));
            }
        }
        for what in &self.unread {
            clauses.push(format!("may be in use: {what}"));
        }
        if clauses.is_empty() {
            return f.write_str("is not used");
        }
        f.write_str(&clauses.join(", "))
    }
}

fn named(above: &Above) -> String {
    let kind = if above.kind.is_empty() {
        "interface"
    } else {
        &above.kind
    };
    match &above.namespace {
        Some(namespace) => format!("{} ({kind} in {namespace})", above.name),
        None => format!("{} ({kind})", above.name),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn above(is_master: bool, name: &str, kind: &str) -> Above {
        Above {
            is_master,
            name: name.to_owned(),
            kind: kind.to_owned(),
            namespace: None,
        }
    }

    #[test]
    fn every_use_is_named() {
        let mut found = HostUse::default();
        assert!(!found.is_used());
        found.unseen = Some("it is dark".to_owned());
        assert!(!found.is_used(), "who may not look there decides");
        let [notice] = &found.notices("v1")[..] else {
            panic!("{found:?}");
        };
        assert!(notice.starts_with("v1: ") && notice.ends_with(": it is dark"));
        found.unseen = None;
        assert_eq!(found.notices("v1"), [""; 0]);
        let unused = found.to_string();
        found.has_address = true;
        assert!(found.is_used());
        let address = found.to_string();
        let [notice] = &found.notices("v1")[..] else {
            panic!("{found:?}");
        };
        assert!(notice.starts_with(&format!("v1 {address}: ")), "{notice}");
        found.has_route = true;
        let both = found.to_string();
        found.has_address = false;
        assert!(found.is_used());
        let all = HashSet::from([unused, address, both.clone(), found.to_string()]);
        assert_eq!(all.len(), 4, "{all:?}");
        found.has_address = true;
        found.above = vec![
            above(false, "bond0.7", "vlan"),
            above(true, "bond0", "bond"),
            Above {
                namespace: Some("network namespace blue".to_owned()),
                ..above(false, "m1", "macvlan")
            },
            above(false, "interface 9", ""),
        ];
        let told = found.to_string();
        // What it belongs to comes before what stands on it.
        let mut rest = told.strip_prefix(&both).expect("what was told before");
        for name in [
            "bond0 (bond)",
            "bond0.7 (vlan)",
            "m1 (macvlan in network namespace blue)",
            "interface 9 (interface)",
        ] {
            (_, rest) = rest.split_once(name).unwrap_or_else(|| panic!("{told}"));
        }
        let names = 3 + 100;
        found
            .above
            .extend((0..100).map(|i| above(false, &format!("n{i}"), "macvlan")));
        let told = found.to_string();
        let (_, list) = told.split_once("bond0 (bond)").expect("it is there still");
        assert_eq!(list.matches(" (").count(), NAMES_MAX, "{told}");
        assert!(list.contains(&format!(" {} ", names - NAMES_MAX)), "{told}");
    }

    #[test]
    fn what_cannot_be_read_is_a_use() {
        let found = HostUse {
            unread: vec!["its routes cannot be read (Permission denied)".to_owned()],
            ..HostUse::default()
        };
        assert!(found.is_used());
        let told = found.to_string();
        assert!(told.ends_with("its routes cannot be read (Permission denied)"));
        assert!(found.notices("v1")[0].starts_with(&format!("v1 {told}: ")));
    }
}
