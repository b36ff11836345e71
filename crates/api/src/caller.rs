//! The client of a request.

use std::{net::SocketAddr, sync::Arc};

use retroscope_recorder::{Action, Change};

use crate::{role::Role, sessions::Session, token::Token};

/// The client of a request, identified by its token, its session or the unix socket, if at all.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// `None`: the client is a user of the unix socket, or needs no token.
    pub(crate) token: Option<Arc<Token>>,
    /// The client's name for audit events, such as the token's name or `uid 0 pid 17`.
    pub(crate) name: Arc<str>,
    /// The account that limits apply to. All processes of a user share an account.
    pub(crate) account: Arc<str>,
    pub(crate) roles: Arc<[Role]>,
    /// Filter of the packets that the client may see.
    pub(crate) filter: Option<Arc<str>>,
    /// Number of bytes of each packet that the client may see.
    pub(crate) snaplen: Option<u32>,
    /// `None`: the client uses the unix socket or needs no token, or this `Caller` is stored in a
    /// session or link.
    pub(crate) address: Option<SocketAddr>,
    /// The session that the request's cookie names, or that the request has started by a login.
    pub(crate) session: Option<Arc<Session>>,
}

impl Caller {
    /// A client of the unix socket, with all roles.
    pub(crate) fn of_peer(uid: u32, pid: i32) -> Self {
        Self {
            token: None,
            name: format!("uid {uid} pid {pid}").into(),
            account: format!("uid {uid}").into(),
            roles: [Role::Admin].into(),
            filter: None,
            snaplen: None,
            address: None,
            session: None,
        }
    }

    /// A client that needs no token, for operations without a role. Each `origin`, a host or user,
    /// has a separate account, so that one host cannot exhaust the request limit of other hosts.
    pub(crate) fn anybody(origin: &str) -> Self {
        Self {
            token: None,
            name: "anybody".into(),
            account: format!("anybody at {origin}").into(),
            roles: [].into(),
            filter: None,
            snaplen: None,
            address: None,
            session: None,
        }
    }

    pub(crate) fn change(&self, action: Action) -> Change {
        Change::new(&self.name, self.address, action)
    }

    pub(crate) fn may(&self, role: Role) -> bool {
        self.roles.iter().any(|own| own.includes(role))
    }

    pub(crate) fn is_restricted(&self) -> bool {
        self.filter.is_some() || self.snaplen.is_some()
    }
}
