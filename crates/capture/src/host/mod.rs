//! The host's own uses of an interface that an engine may take away from the host.
//!
//! - `links`: interfaces on top of an interface, from the kernel's list of links. Pure.
//! - `netlink_queries`: addresses, routes and links of this network namespace, by netlink.
//!
//! A fact that cannot be read counts as a use. A macvlan or VLAN that was moved into another
//! network namespace cannot be seen at all ([`UNSEEN`]).

mod links;
mod netlink_queries;

use std::fmt;

use self::links::UpperLink;
use crate::SourceError;

/// Largest number of names in one list of a sentence; the other names are only counted.
const NAMES_MAX: usize = 8;

/// A use that [`HostUse`] cannot see.
pub const UNSEEN: &str =
    "a macvlan or VLAN on it in another network namespace, such as a container's, cannot be seen";

/// The host's uses of an interface, in words: `has an address, is under eth0.5 (vlan)`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostUse {
    has_address: bool,
    has_route: bool,
    /// Links on top of the interface.
    upper_links: Vec<UpperLink>,
    /// Facts that could not be read, with the reason.
    unread: Vec<String>,
}

impl HostUse {
    /// Whether the host uses the interface, as far as visible. A fact that could not be read counts
    /// as a use.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.has_address
            || self.has_route
            || !self.upper_links.is_empty()
            || !self.unread.is_empty()
    }

    /// Why an engine does not take the interface `name` away.
    pub fn refusal(&self, name: &str, engine: &str) -> SourceError {
        SourceError::Usage(format!(
            "{name} {self}: {engine} takes every packet away from this host, which would cut its connections there. Say \
                 --set take-interface=true if that is meant, or use --engine af-packet"
        ))
    }

    /// Sentences for the user on the uses that are cut off while the interface `name` is taken
    /// away, and [`UNSEEN`].
    pub fn notices(&self, name: &str) -> Vec<String> {
        let is = if self.unread.is_empty() {
            "is"
        } else {
            "may be"
        };
        let cut_off = self
            .is_used()
            .then(|| format!("{name} {self}: all of that {is} cut off while {name} is recorded"));
        let unseen = format!("{name}: {UNSEEN}, and is cut off too");
        cut_off.into_iter().chain([unseen]).collect()
    }
}

/// The uses as a clause after the interface's name; `is not used` without any use.
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
                .upper_links
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

fn named(above: &UpperLink) -> String {
    let kind = if above.kind.is_empty() {
        "interface"
    } else {
        &above.kind
    };
    format!("{} ({kind})", above.name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn above(is_master: bool, name: &str, kind: &str) -> UpperLink {
        UpperLink {
            is_master,
            name: name.to_owned(),
            kind: kind.to_owned(),
        }
    }

    #[test]
    fn every_use_is_named() {
        let mut found = HostUse::default();
        assert!(!found.is_used());
        let unseen = format!("v1: {UNSEEN}, and is cut off too");
        assert_eq!(found.notices("v1"), [unseen.as_str()]);
        let unused = found.to_string();
        found.has_address = true;
        assert!(found.is_used());
        let address = found.to_string();
        let [notice, last] = &found.notices("v1")[..] else {
            panic!("{found:?}");
        };
        assert!(notice.starts_with(&format!("v1 {address}: ")), "{notice}");
        assert_eq!(*last, unseen);
        found.has_route = true;
        let both = found.to_string();
        found.has_address = false;
        assert!(found.is_used());
        let all = HashSet::from([unused, address, both.clone(), found.to_string()]);
        assert_eq!(all.len(), 4, "{all:?}");
        found.has_address = true;
        found.upper_links = vec![
            above(false, "bond0.7", "vlan"),
            above(true, "bond0", "bond"),
            above(false, "m1", "macvlan"),
            above(false, "interface 9", ""),
        ];
        let told = found.to_string();
        // The master comes before the links on top.
        let mut rest = told.strip_prefix(&both).expect("what was told before");
        for name in [
            "bond0 (bond)",
            "bond0.7 (vlan)",
            "m1 (macvlan)",
            "interface 9 (interface)",
        ] {
            (_, rest) = rest.split_once(name).unwrap_or_else(|| panic!("{told}"));
        }
        let names = 3 + 100;
        found
            .upper_links
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
