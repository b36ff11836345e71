//! Addresses of the API, and their sockets, which are opened before privileges are dropped.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::unix::net::UnixListener,
    path::PathBuf,
    str::FromStr,
    sync::Arc,
};

use retroscope_unix::{BoundSocket, SocketFile};

use crate::{Config, Notifier, Page, operations::RouteSet, tls::Tls, token::Tokens};

/// An address to listen on: `127.0.0.1:8080`, `[::1]:8080`, or `unix:/run/retroscope.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// An IP address and port. Port 0: any free port.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Err("the path of a unix socket is missing: unix:/run/retroscope.sock".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text.parse().map(Self::Tcp).map_err(|_| {
                format!("{text:?} is neither an address with a port, as 127.0.0.1:8080 or [::1]:8080, nor unix:PATH")
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener, Option<Arc<Tls>>),
    Unix(UnixListener, SocketFile),
}

/// The open sockets of an API that is not served yet. Clients can already connect.
#[derive(Debug)]
pub struct BoundApi {
    pub(crate) listeners: Vec<(Listener, RouteSet)>,
    pub(crate) tokens: Option<Tokens>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) hosts: Vec<String>,
    pub(crate) page: Option<Page>,
    /// The URL of the page, for links that log in; `None`: no TCP address has a page.
    pub(crate) page_url: Option<String>,
    pub(crate) say: Notifier,
}

impl BoundApi {
    /// Opens the sockets, and reads tokens, keys and certificates. Must run before privileges are
    /// dropped.
    ///
    /// # Errors
    ///
    /// A sentence: an address is in use or not permitted, or a file cannot be read or is invalid.
    /// Or an address other than loopback has no TLS, or a TCP address needs a token file.
    pub fn new(config: &Config, say: &Notifier) -> Result<Self, String> {
        let tls = config
            .tls
            .as_ref()
            .map(Tls::read)
            .transpose()?
            .map(Arc::new);
        let is_tcp = |address: &&Address| matches!(address, Address::Tcp(_));
        let all = config
            .addresses
            .iter()
            .map(|it| (it, "--api", RouteSet::All));
        let metrics = config.metrics.iter();
        let all = all.chain(metrics.map(|it| (it, "api.metrics", RouteSet::Metrics)));
        // Without tokens, clients of a unix socket can make links that log in at a loopback
        // address.
        let has_links =
            config.page.is_some() && config.addresses.iter().any(|address| !is_tcp(&address));
        let needs_tokens = |(address, _, part): &(&Address, &str, RouteSet)| match address {
            Address::Tcp(at) => !(has_links && at.ip().is_loopback() && *part == RouteSet::All),
            Address::Unix(_) => false,
        };
        let first = all.clone().find(needs_tokens);
        let tokens = match (&config.tokens, first) {
            (Some(path), _) => Some(Tokens::read(path)?),
            (None, None) => None,
            (None, Some((address, option, _))) => {
                return Err(format!(
                    "{option} {address}: over TCP everybody is asked for a token: name their file by --tokens FILE, and make one by \
                     `retroscope token`; a unix socket ({option} unix:PATH) needs none, and with one the page at a loopback address needs none either"
                ));
            }
        };
        let listen = |(address, option, part): (&Address, &str, RouteSet)| {
            let failed = |why: String| format!("{option} {address}: {why}");
            match address {
                Address::Unix(path) => {
                    let socket = BoundSocket::<UnixListener>::bind(path, config.owner, say);
                    let BoundSocket { socket, file } =
                        socket.map_err(|why| format!("{option} unix:{why}"))?;
                    set_nonblocking(socket.set_nonblocking(true)).map_err(failed)?;
                    Ok((Listener::Unix(socket, file), part))
                }
                Address::Tcp(at) => {
                    if !at.ip().is_loopback() && tls.is_none() {
                        return Err(failed(
                            "beyond this machine packets and tokens go by TLS only: set api.tls-cert and api.tls-key".to_owned(),
                        ));
                    }
                    let listener =
                        TcpListener::bind(at).map_err(|error| failed(error.to_string()))?;
                    set_nonblocking(listener.set_nonblocking(true)).map_err(failed)?;
                    Ok((Listener::Tcp(listener, tls.clone()), part))
                }
            }
        };
        let listeners = all.map(listen).collect::<Result<Vec<_>, String>>()?;
        let page_url = config
            .page
            .and_then(|_| page_url(&listeners, &config.hosts));
        Ok(Self {
            listeners,
            tokens,
            tls,
            hosts: config
                .hosts
                .iter()
                .map(|host| host.to_ascii_lowercase())
                .collect(),
            page: config.page,
            page_url,
            say: say.clone(),
        })
    }

    /// The URLs of the TCP addresses. Port 0 is replaced by the actual port.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        let is_tls =
            |listener: &(Listener, RouteSet)| matches!(listener.0, Listener::Tcp(_, Some(_)));
        let scheme = if self.listeners.iter().any(is_tls) {
            "https"
        } else {
            "http"
        };
        let addresses = self.tcp_addresses().into_iter();
        addresses.map(|at| format!("{scheme}://{at}")).collect()
    }

    /// The TCP addresses. Port 0 is replaced by the actual port.
    #[must_use]
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        let addresses = self
            .listeners
            .iter()
            .filter_map(|(listener, _)| match listener {
                Listener::Tcp(listener, _) => listener.local_addr().ok(),
                Listener::Unix(..) => None,
            });
        addresses.collect()
    }
}

/// The URL of the page for a browser on this machine. With TLS, the host is the first name of
/// `hosts`, if any, because the certificate probably contains this name.
fn page_url(listeners: &[(Listener, RouteSet)], hosts: &[String]) -> Option<String> {
    let all = listeners.iter().filter(|(_, part)| *part == RouteSet::All);
    let (at, is_tls) = all
        .filter_map(|(listener, _)| match listener {
            Listener::Tcp(listener, tls) => Some((listener.local_addr().ok()?, tls.is_some())),
            Listener::Unix(..) => None,
        })
        .next()?;
    let at = match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => (Ipv4Addr::LOCALHOST, at.port()).into(),
        IpAddr::V6(ip) if ip.is_unspecified() => (Ipv6Addr::LOCALHOST, at.port()).into(),
        _ => at,
    };
    Some(match (is_tls, hosts.first()) {
        (true, Some(host)) => format!("https://{host}:{}/", at.port()),
        (true, None) => format!("https://{at}/"),
        (false, _) => format!("http://{at}/"),
    })
}

fn set_nonblocking(set: std::io::Result<()>) -> Result<(), String> {
    set.map_err(|error| format!("cannot be listened at: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_shown() {
        for text in ["127.0.0.1:8080", "[::1]:0", "unix:/run/a b.sock", "unix:x"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "unix:",
            "localhost:80",
            "127.0.0.1",
            ":80",
            "8080",
            "/run/x",
        ] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }
}
