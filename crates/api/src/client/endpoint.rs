//! The address of a recorder, for clients.

use std::{
    env, fmt,
    io::{self, ErrorKind},
    net::IpAddr,
    path::PathBuf,
    str::FromStr,
};

use hyper::http::uri::{Authority, Uri};
use tokio_rustls::rustls::pki_types::ServerName;

/// The socket of the system's recorder.
pub const SOCKET: &str = "/run/retroscope/retroscope.sock";
/// The name of a user's socket, below `$XDG_RUNTIME_DIR`.
const USER_SOCKET: &str = "retroscope.sock";

/// The socket of commands without `--socket` and `--url`: [`SOCKET`]. If that file is missing and
/// `$XDG_RUNTIME_DIR` is not empty: `retroscope.sock` in that directory.
#[must_use]
pub fn default_socket() -> PathBuf {
    let system = PathBuf::from(SOCKET);
    let directory = env::var_os("XDG_RUNTIME_DIR").filter(|directory| !directory.is_empty());
    match directory {
        Some(directory) if !system.exists() => PathBuf::from(directory).join(USER_SOCKET),
        _ => system,
    }
}

/// The address of a recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// The path of a unix socket.
    Socket(PathBuf),
    /// A URL.
    Url(Url),
}

/// `https://HOST[:PORT]` or `http://HOST[:PORT]`, and a path prefix if the recorder is behind a
/// proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    is_tls: bool,
    authority: Authority,
    /// Path prefix without a trailing slash; may be empty.
    prefix: String,
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Err(format!("a unix socket is no URL: write --socket {path}"));
        }
        let not_because = |why: &str| {
            format!(
                "{text:?} is not where a recorder is{why}: write it like https://tap.example:8443 or http://127.0.0.1:8080"
            )
        };
        let wrong = || not_because("");
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let prefix = uri.path().trim_end_matches('/').to_owned();
        // `/v1/status` and `/metrics` are paths of operations, not prefixes.
        let mut parts = prefix.split('/');
        let is_prefix = !parts.any(|part| matches!(part, "." | ".." | "v1" | "metrics"));
        if !is_prefix || uri.query().is_some() || text.contains('#') {
            return Err(not_because(" but an address of the API or the page"));
        }
        let authority = uri.authority().ok_or_else(wrong)?.clone();
        let has_port = authority.port_u16().is_some() || authority.as_str() == authority.host();
        if authority.as_str().contains('@') || authority.host().is_empty() || !has_port {
            return Err(wrong());
        }
        Ok(Self {
            is_tls,
            authority,
            prefix,
        })
    }
}

impl Url {
    pub(super) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The host name or address, without brackets.
    pub(super) fn host(&self) -> &str {
        let host = self.authority.host();
        host.trim_start_matches('[').trim_end_matches(']')
    }

    pub(super) fn port(&self) -> u16 {
        let default = if self.is_tls { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(default)
    }

    pub(super) fn is_loopback(&self) -> bool {
        let host = self.host();
        let is_address = |address: IpAddr| address.is_loopback();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_address)
    }

    pub(super) fn server_name(&self) -> io::Result<ServerName<'static>> {
        let name = ServerName::try_from(self.host().to_owned());
        name.map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))
    }
}

impl Endpoint {
    /// Value of the header `Host`.
    pub(super) fn authority(&self) -> &str {
        match self {
            Self::Socket(_) => "localhost",
            Self::Url(url) => url.authority.as_str(),
        }
    }

    pub(super) fn prefix(&self) -> &str {
        match self {
            Self::Socket(_) => "",
            Self::Url(url) => &url.prefix,
        }
    }

    /// The reason of a failed connection, and its remedy if known.
    pub(super) fn advice(&self, error: &io::Error) -> String {
        let what = match (self, error.kind()) {
            (Self::Socket(_), ErrorKind::NotFound) => {
                "does a recorder run with --api unix:PATH? --socket PATH names another socket"
            }
            (Self::Socket(_), ErrorKind::ConnectionRefused) => {
                "stale socket: no recorder is listening"
            }
            (Self::Socket(_), ErrorKind::PermissionDenied) => {
                "it is for the recorder's user, root and its group"
            }
            (Self::Url(_), ErrorKind::ConnectionRefused) => "does a recorder run there with --api?",
            _ if error.to_string().contains("CaUsedAsEndEntity") => {
                "the recorder shows the certificate of an authority: make it one that is none (CA:FALSE)"
            }
            _ if error.to_string().contains("UnknownIssuer") => {
                "the certificate is of no known authority: name its authority by --ca FILE"
            }
            _ => return error.to_string(),
        };
        format!("{error}: {what}")
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Url(url) => {
                let scheme = if url.is_tls { "https" } else { "http" };
                write!(f, "{scheme}://{}{}", url.authority, url.prefix)
            }
        }
    }
}

/// Makes the target of a request from path `parts` and from the names and values in `parameters`.
/// Parts and values are percent-encoded (RFC 3986, section 2.1), names are not.
#[must_use]
pub fn target(parts: &[&str], parameters: &[(&str, &str)]) -> String {
    let mut target = String::new();
    for part in parts {
        target.push('/');
        encode(part, &mut target);
    }
    for (number, (name, value)) in parameters.iter().enumerate() {
        target.push(if number == 0 { '?' } else { '&' });
        target.push_str(name);
        target.push('=');
        encode(value, &mut target);
    }
    target
}

fn encode(text: &str, into: &mut String) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lead_to_a_host_and_perhaps_a_prefix() {
        for (text, host, port, is_loopback) in [
            ("https://tap.example:8443", "tap.example", 8443, false),
            ("https://tap.example/", "tap.example", 443, false),
            ("http://127.0.0.1:8080", "127.0.0.1", 8080, true),
            ("http://[::1]:1", "::1", 1, true),
            ("http://LOCALHOST", "LOCALHOST", 80, true),
            ("https://192.0.2.1", "192.0.2.1", 443, false),
            ("https://192.0.2.1/tap/1/", "192.0.2.1", 443, false),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!((url.host(), url.port()), (host, port), "{text}");
            assert_eq!(url.is_loopback(), is_loopback, "{text}");
            let shown = Endpoint::Url(url).to_string();
            assert_eq!(shown, text.trim_end_matches('/'));
        }
        for wrong in [
            "",
            "tap.example",
            "tap.example:8443",
            "ftp://tap.example",
            "https://",
            "https://tap.example/v1",
            "https://tap.example/tap/v1/status",
            "https://tap.example/../x",
            "https://tap.example?x=1",
            "https://tap.example#x",
            "https://user@tap.example",
            "https://tap.example:99999",
            "/run/x.sock",
        ] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
        for (wrong, told) in [
            ("unix:/run/x.sock", "--socket /run/x.sock"),
            ("https://tap.example/v1", "of the API or the page"),
        ] {
            let why = wrong.parse::<Url>().unwrap_err();
            assert!(why.contains(told), "{why}");
        }
    }

    #[test]
    fn what_is_no_letter_is_encoded() {
        let parameters = [("filter", "host 10.0.0.1 and (a&b) + ü"), ("last", "30s")];
        assert_eq!(
            target(&["v1", "rules", "a/../b?"], &parameters),
            "/v1/rules/a%2F..%2Fb%3F?filter=host%2010.0.0.1%20and%20%28a%26b%29%20%2B%20%C3%BC&last=30s"
        );
        assert_eq!(target(&["v1", "status"], &[]), "/v1/status");
    }
}
