//! How packets of an interface come in.

use std::{fmt, io};

/// How AF_XDP takes packets from an interface now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpMode {
    /// The driver runs the program; else the kernel's network stack does, behind the allocation of a kernel packet.
    pub is_native: bool,
    /// Why the kernel copies each packet; `None`: the NIC writes where the program reads (zero-copy).
    pub copied: Option<WhyCopied>,
    /// Packets longer than a chunk come in several; else they are lost and counted
    /// ([`LossCause::Oversize`](crate::LossCause::Oversize)).
    pub is_multi_buffer: bool,
}

/// Why packets are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyCopied {
    /// The driver does not run the program, so it was not asked.
    Generic,
    /// What bind(2) returned for zero-copy, an `errno`: `EOPNOTSUPP` where the driver does not have it, or not for packets in several
    /// chunks.
    Refused(i32),
}

impl fmt::Display for WhyCopied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Generic => f.write_str("the driver runs no XDP program"),
            Self::Refused(code) => {
                let words = io::Error::from_raw_os_error(*code).to_string();
                f.write_str(words.split(" (os error").next().unwrap_or(&words))
            }
        }
    }
}

impl XdpMode {
    /// That of an interface with several queues: what holds for all.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            is_native: self.is_native && other.is_native,
            copied: self.copied.or(other.copied),
            is_multi_buffer: self.is_multi_buffer && other.is_multi_buffer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_queue_in_copy_mode_is_told_of_the_interface() {
        let mode = |copied| XdpMode {
            is_native: true,
            copied,
            is_multi_buffer: false,
        };
        let why = WhyCopied::Refused(libc::EOPNOTSUPP);
        let refused = Some(why);
        for (one, other) in [(None, refused), (refused, None), (refused, refused)] {
            assert_eq!(mode(one).and(mode(other)), mode(refused));
        }
        assert_eq!(mode(None).and(mode(None)).copied, None);
        assert_eq!(why.to_string(), "Operation not supported");
    }
}
