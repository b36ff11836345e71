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
    unseen: Option<String>,
}

impl HostUse {
    /// What the calling thread's network namespace uses its interface `name` for, and, where this process may look there, what stands on
    /// it in others. Needs no privilege for the former; for the latter CAP_SYS_ADMIN and CAP_SYS_PTRACE, or CAP_NET_ADMIN, with which
    /// less is found.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut found = Self::here(name);
        found.look_elsewhere(name);
        found
    }

    /// Of the calling thread's network namespace only. Takes no privilege, and a socket, which is closed again.
    pub(crate) fn here(name: &str) -> Self {
        ask::host_use(name)
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
        let unseen = self.unseen().map(|why| {
            format!(
                "{name}: whether a macvlan or VLAN in another network namespace stands on it, and is cut off, cannot be seen: {why}"
            )
        });
        cut_off.into_iter().chain(unseen).collect()
    }

    /// Why interfaces of other network namespaces may stand on it without being found; `None`: all were looked at.
    #[must_use]
    pub fn unseen(&self) -> Option<&str> {
        self.unseen.as_deref()
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
    fn uses_are_told_in_one_clause() {
        let mut found = HostUse::default();
        assert!(!found.is_used());
        assert_eq!(found.to_string(), "is not used");
        found.unseen = Some("it is dark".to_owned());
        assert!(!found.is_used(), "who may not look there decides");
        assert_eq!(
            found.notices("v1"),
            [
                "v1: whether a macvlan or VLAN in another network namespace stands on it, and is cut off, cannot be seen: it is dark"
            ]
        );
        found.unseen = None;
        assert_eq!(found.notices("v1"), [""; 0]);
        found.has_address = true;
        assert_eq!(found.to_string(), "has an address");
        assert_eq!(
            found.notices("v1"),
            ["v1 has an address: all of that is cut off while v1 is recorded"]
        );
        found.has_route = true;
        found.above = vec![
            above(true, "bond0", "bond"),
            above(false, "bond0.7", "vlan"),
            Above {
                namespace: Some("network namespace blue".to_owned()),
                ..above(false, "m1", "macvlan")
            },
            above(false, "interface 9", ""),
        ];
        assert_eq!(
            found.to_string(),
            "has an address and a route, belongs to bond0 (bond), is under bond0.7 (vlan), m1 (macvlan in network namespace blue) \
             and interface 9 (interface)"
        );
        found
            .above
            .extend((0..100).map(|i| above(false, &format!("m{i}"), "macvlan")));
        assert!(
            found.to_string().ends_with("m4 (macvlan) and 95 more"),
            "{found}"
        );
    }

    #[test]
    fn what_cannot_be_read_is_a_use() {
        let found = HostUse {
            unread: vec!["its routes cannot be read (Permission denied)".to_owned()],
            ..HostUse::default()
        };
        assert!(found.is_used());
        assert_eq!(
            found.to_string(),
            "may be in use: its routes cannot be read (Permission denied)"
        );
        let notices = found.notices("v1");
        assert!(
            notices[0].ends_with(": all of that may be cut off while v1 is recorded"),
            "{notices:?}"
        );
    }
}
