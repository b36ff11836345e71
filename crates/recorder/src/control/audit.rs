//! Records of changes by clients and of refused clients.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;

/// Maximum bytes kept of a target, detail, error, reason or refused caller. Clients choose some of
/// these texts.
const TEXT_BYTES_MAX: usize = 1024;

/// A change by a client or by a reload, or a failed reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Change {
    /// The caller: a token's name, `uid 0 pid 17` at the unix socket, or `SIGHUP`.
    #[serde(rename = "caller")]
    pub who: String,
    /// The client's address and port; `None`: the client has none, as at the unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<SocketAddr>,
    /// The kind of change.
    pub action: Action,
    /// The name of the rule or pin, the ID of the dump, the mode of `when-full`, or `all` for all
    /// sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The expression of a rule, or what a reload changed: the first 1024 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Why the change failed; `None`: the change was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// A rule is new, or has other terms.
    PutRule,
    /// A rule's matches are hits from now on.
    EnableRule,
    /// A rule's matches are no hits from now on.
    DisableRule,
    /// A rule is gone.
    RemoveRule,
    /// The ring keeps a time range.
    Pin,
    /// The ring no longer keeps a time range.
    Unpin,
    /// The behaviour of a full ring is set.
    SetWhenFull,
    /// The configuration file was read again.
    Reload,
    /// The recording ends.
    Stop,
    /// A dump is kept from being deleted.
    HoldDump,
    /// A dump may be deleted again.
    ReleaseDump,
    /// A session of the page began.
    LogIn,
    /// A session of the page ended at a client's request; with target `all`: all sessions.
    LogOut,
    /// A one-time link to log in to the page was made.
    MakeLink,
}

impl Change {
    /// A successful change without target and detail.
    #[must_use]
    pub fn new(who: &str, address: Option<SocketAddr>, action: Action) -> Self {
        Self {
            who: who.to_owned(),
            address,
            action,
            target: None,
            detail: None,
            error: None,
        }
    }

    /// Adds the target: for example the name of a rule. Keeps at most the first 1024 bytes.
    #[must_use]
    pub fn of(self, target: &str) -> Self {
        Self {
            target: Some(cut(target)),
            ..self
        }
    }

    /// Adds an expression or a report. Keeps at most the first 1024 bytes.
    #[must_use]
    pub fn with(self, detail: &str) -> Self {
        Self {
            detail: Some(cut(detail)),
            ..self
        }
    }

    /// Marks the change as failed.
    #[must_use]
    pub fn failed(self, why: &str) -> Self {
        Self {
            error: Some(cut(why)),
            ..self
        }
    }
}

impl fmt::Display for Change {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = self.who.clone();
        if let Some(address) = self.address {
            line += &format!(" from {address}");
        }
        line += match self.action {
            Action::PutRule => " put rule",
            Action::EnableRule => " enabled rule",
            Action::DisableRule => " disabled rule",
            Action::RemoveRule => " removed rule",
            Action::Pin => " pinned",
            Action::Unpin => " unpinned",
            Action::SetWhenFull => " set when-full to",
            Action::Reload => " reloaded the configuration",
            Action::Stop => " stopped the recording",
            Action::HoldDump => " held dump",
            Action::ReleaseDump => " released dump",
            Action::LogIn => " logged in",
            Action::LogOut => " logged out",
            Action::MakeLink => " made a link to log in",
        };
        if let Some(target) = &self.target {
            line += &format!(" '{target}'");
        }
        if let Some(detail) = &self.detail {
            line += &format!(": {detail}");
        }
        if let Some(error) = &self.error {
            line += &format!(": failed: {error}");
        }
        f.write_str(&printable(&line))
    }
}

/// Requests or connections that were refused because of the client's identity, permissions or
/// origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Refusal {
    /// The token's name, or `uid 1000` at the unix socket; `None`: unknown.
    #[serde(rename = "caller", skip_serializing_if = "Option::is_none")]
    pub who: Option<String>,
    /// The client's address; `None`: the unix socket, or several addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub address: Option<IpAddr>,
    /// The status code; `None`: the TLS handshake failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The first 1024 bytes of the reason; of several refusals, the last reason.
    pub reason: String,
    /// Number of refusals: 1, or the sum of the refusals in a minute after the first refusal.
    pub count: u64,
}

impl Refusal {
    /// One refusal.
    #[must_use]
    pub fn new(
        who: Option<&str>,
        address: Option<IpAddr>,
        status: Option<u16>,
        reason: &str,
    ) -> Self {
        Self {
            who: who.map(cut),
            address,
            status,
            reason: cut(reason),
            count: 1,
        }
    }
}

impl fmt::Display for Refusal {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = "refused".to_owned();
        if self.count > 1 {
            line += &format!(" {} more requests of", self.count);
        }
        match (&self.who, self.address) {
            (Some(who), Some(address)) => line += &format!(" '{who}' from {address}"),
            (Some(who), None) => line += &format!(" {who} at the unix socket"),
            (None, Some(address)) => line += &format!(" {address}"),
            (None, None) => line += " several addresses",
        }
        if let Some(status) = self.status {
            line += &format!(" ({status})");
        }
        let reason = &self.reason;
        f.write_str(&printable(&format!("{line}: {reason}")))
    }
}

/// Replaces control characters, because the text may be shown on a terminal.
fn printable(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Cuts a text between characters, to [`TEXT_BYTES_MAX`] bytes at most.
fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_and_bounded() {
        let address = "192.0.2.7:80".parse().ok();
        let change = Change::new("ops", address, Action::PutRule);
        let line = change.of("a\nb").with(&"ü".repeat(2000)).to_string();
        assert!(line.starts_with("ops from 192.0.2.7:80 put rule 'a b': ü"));
        assert!(line.len() < 1100, "{}", line.len());
        let change = Change::new("SIGHUP", None, Action::Reload).failed("no\nfile");
        assert_eq!(
            change.to_string(),
            "SIGHUP reloaded the configuration: failed: no file"
        );
        let refusal = |who, address| Refusal::new(who, address, Some(401), "no\u{1b}[2J");
        let from = "192.0.2.7".parse().ok();
        assert_eq!(
            refusal(Some("a"), from).to_string(),
            "refused 'a' from 192.0.2.7 (401): no [2J"
        );
        let many = Refusal {
            count: 7,
            ..refusal(None, from)
        };
        assert_eq!(
            many.to_string(),
            "refused 7 more requests of 192.0.2.7 (401): no [2J"
        );
    }
}
