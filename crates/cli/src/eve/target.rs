//! The argument that names the destination of EVE lines.

use std::{fmt, path::PathBuf, str::FromStr};

use rustix::net::SocketAddrUnix;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EveTarget {
    /// Stdout: `-`.
    Stdout,
    /// A file to which lines are appended.
    File(PathBuf),
    /// `unix:PATH`, a stream socket at which another program listens.
    Unix(PathBuf),
}

impl FromStr for EveTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it names no file: write FILE, - for stdout, or unix:PATH".to_owned());
        }
        if text == "-" {
            return Ok(Self::Stdout);
        }
        let Some(path) = text.strip_prefix("unix:") else {
            return Ok(Self::File(text.into()));
        };
        if path.is_empty() {
            return Err("unix: names no socket: write unix:/run/reader.sock".to_owned());
        }
        SocketAddrUnix::new(path).map_err(|_| {
            let len = path.len();
            format!("the path of a socket has at most 108 bytes, this one has {len}")
        })?;
        Ok(Self::Unix(path.into()))
    }
}

impl fmt::Display for EveTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}
