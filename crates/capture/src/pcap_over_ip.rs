//! pcap over IP: a pcap or pcapng stream from a TCP server, as Wireshark's `TCP@host:port`.
//!
//! The server is a program that captures: `tcpdump -U -w - | nc -l 57012`, a sensor, or a TLS proxy
//! that sends decrypted traffic. The protocol has no authentication and no end mark.
//!
//! # One connection
//! The source connects once, and the end of the stream is the end of the source. With a second
//! connection, the packets between two streams would be a gap of unknown size that looks like
//! silence.
//!
//! # A silent server, or endless input
//! A silent connection may belong to a quiet link, or to a host that no longer exists. TCP probes
//! the server after [30 s](KEEPALIVE_IDLE) of silence, then every [10 s](KEEPALIVE_INTERVAL), and
//! closes the connection after [3](KEEPALIVE_PROBES) probes without an answer. So the queue ends
//! with an error after about a minute. A call of `next` returns soon after its wait, even if the
//! input never completes a record.
//!
//! # Counting and time
//! `received` counts the records that were read. The sender's losses are unknown: the cause
//! `upstream` is `null`. The time stamps come from the sender's clock, in any order, so the queue
//! has no watermark.

use std::{
    io::{self, Read},
    net::{TcpStream, ToSocketAddrs},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use retroscope_pcapfile::TextAllowance;
use rustix::net::sockopt;

use crate::{
    Probed, Source, SourceError,
    clock::{self, SECOND_NS},
    poll::wait_for,
    records::{self, source_error},
};

/// The prefix of a source's name.
const PREFIX: &str = "TCP@";

/// How long to wait for a connection to one address of the host, and then for the start of the
/// stream.
const CONNECT_WAIT: Duration = Duration::from_secs(10);
const HEADER_WAIT_NS: i64 = 10 * SECOND_NS;

/// How long to wait for more data after the first [`HEADER_BYTES`] of the stream. Interface blocks
/// of pcapng follow at once; a first packet may take hours.
const INTERFACES_WAIT_NS: i64 = SECOND_NS;

/// Silence on a connection after which TCP sends the first probe (tcp(7), `TCP_KEEPIDLE`).
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// How long TCP waits for an answer before the next probe (`TCP_KEEPINTVL`).
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of probes without an answer after which TCP closes the connection (`TCP_KEEPCNT`).
pub const KEEPALIVE_PROBES: u32 = 3;

/// Bytes that are enough to identify an uncompressed format: the length of a pcap file header.
const HEADER_BYTES: usize = 24;

/// Whether `name` begins as the name of a pcap-over-IP source.
#[must_use]
pub fn is_address(name: &str) -> bool {
    name.get(..PREFIX.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}

/// A server of pcap over IP that implements [`Source`].
#[derive(Debug)]
pub struct TcpSource {
    name: String,
    host: String,
    port: u16,
    texts: TextAllowance,
}

impl TcpSource {
    /// Parses `TCP@host:port`. An IPv6 address must be in brackets.
    ///
    /// # Errors
    /// [`SourceError::Usage`].
    pub fn parse(name: &str) -> Result<Self, SourceError> {
        let usage = || {
            SourceError::Usage(format!(
                "-i {name}: write TCP@HOST:PORT, for example TCP@192.0.2.7:57012 or TCP@[2001:db8::7]:57012"
            ))
        };
        let address = name.get(PREFIX.len()..).filter(|_| is_address(name));
        let (host, port) = address
            .and_then(|address| address.rsplit_once(':'))
            .ok_or_else(usage)?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(usage)?,
            None if host.contains(':') => return Err(usage()),
            None => host,
        };
        let port = port.parse().map_err(|_| usage())?;
        if host.is_empty() || port == 0 {
            return Err(usage());
        }
        Ok(Self {
            name: name.to_owned(),
            host: host.to_owned(),
            port,
            texts: TextAllowance::default(),
        })
    }

    /// Shares the memory limit for names and descriptions of interfaces with other sources.
    #[must_use]
    pub fn sharing(self, texts: TextAllowance) -> Self {
        Self { texts, ..self }
    }

    /// Tries the host's addresses in turn, until a connection succeeds.
    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_WAIT) {
                Ok(socket) => {
                    keep_alive(&socket)?;
                    return Ok(socket);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        SourceError::system(&self.name, call, error)
    }
}

impl Source for TcpSource {
    fn name(&self) -> &str {
        &self.name
    }

    /// Connects, and waits up to 10 s for the first 24 bytes of the stream, then up to 1 s for its
    /// interfaces and its first packet.
    fn probe(self: Box<Self>, _queues: usize) -> Result<Box<dyn Probed>, SourceError> {
        let socket = self
            .connect()
            .map_err(|error| self.error("connect", error))?;
        let until_ns = Arc::new(AtomicI64::new(clock::monotonic_ns() + HEADER_WAIT_NS));
        let stream = DeadlineStream {
            socket,
            until_ns: Arc::clone(&until_ns),
            overdue_ns: i64::MIN,
            read: 0,
        };
        let (path, texts) = (Path::new(&self.name), self.texts.clone());
        records::open(path, stream, texts, Some(until_ns), Arc::default()).map_err(|error| {
            if !error.is_would_block() {
                return source_error(path, error);
            }
            let message = "connected, but received no capture with an interface";
            self.error("read", io::Error::new(io::ErrorKind::TimedOut, message))
        })
    }
}

/// Lets TCP detect that the server is gone.
fn keep_alive(socket: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)
}

/// A connection whose reads end at a deadline with [`io::ErrorKind::WouldBlock`], even if more data
/// are available. After each deadline one more read succeeds if data are available, so that a wait
/// of zero reads something.
#[derive(Debug)]
struct DeadlineStream {
    socket: TcpStream,
    /// The deadline on the monotonic clock. The queue sets a deadline in each call of `next`.
    until_ns: Arc<AtomicI64>,
    /// The last deadline after which a read was tried once more.
    overdue_ns: i64,
    /// Bytes read. Counted until the number reaches [`HEADER_BYTES`].
    read: usize,
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Relaxed: no other data depends on it.
            let until_ns = self.until_ns.load(Ordering::Relaxed);
            let wait_ns = until_ns.saturating_sub(clock::monotonic_ns());
            if wait_ns <= 0 {
                if self.overdue_ns == until_ns {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                self.overdue_ns = until_ns;
            }
            if !wait_for(&self.socket, wait_ns)?.is_empty() {
                break;
            }
        }
        let count = self.socket.read(buffer)?;
        if self.read < HEADER_BYTES {
            self.read += count;
            if self.read >= HEADER_BYTES {
                let until_ns = clock::monotonic_ns() + INTERFACES_WAIT_NS;
                self.until_ns.store(until_ns, Ordering::Relaxed);
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let parse = |name| TcpSource::parse(name).map(|source| (source.host, source.port));
        for (name, host, port) in [
            ("TCP@sensor.example:57012", "sensor.example", 57012),
            ("tcp@192.0.2.7:1", "192.0.2.7", 1),
            ("TCP@[2001:db8::7]:65535", "2001:db8::7", 65535),
        ] {
            assert!(is_address(name));
            assert_eq!(parse(name).unwrap(), (host.to_owned(), port), "{name}");
        }
        for wrong in [
            "TCP@",
            "TCP@host",
            "TCP@:1",
            "TCP@host:",
            "TCP@host:0",
            "TCP@host:65536",
            "TCP@2001:db8::7:1",
            "TCP@[::1:1",
            "TCP@host:one",
            "eth0",
        ] {
            assert!(
                matches!(parse(wrong), Err(SourceError::Usage(_))),
                "{wrong}"
            );
        }
        assert!(!is_address("eth0") && !is_address("") && !is_address("TCP"));
    }
}
