//! Looks up and queries an interface by name. An interface that gets the name of a removed
//! interface usually has another index.

use std::io;

use crate::{
    SourceError,
    af_packet::sys::{Flags, InterfaceQuery},
};

/// An interface name, and a socket to query the interface that currently has the name.
#[derive(Debug)]
pub struct NamedInterface {
    /// The name.
    pub name: String,
    pub(crate) query: InterfaceQuery,
}

/// Properties of an interface at the time of a look-up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InterfaceSnapshot {
    pub(crate) index: i32,
    /// An `ARPHRD_` value.
    pub(crate) hardware_type: u16,
    pub(crate) flags: Flags,
}

impl NamedInterface {
    /// Prepares queries for an interface name in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn new(name: &str) -> Result<Self, SourceError> {
        let query = InterfaceQuery::new()
            .map_err(|error| SourceError::system(name, "socket(AF_UNIX)", error))?;
        let name = name.to_owned();
        Ok(Self { name, query })
    }

    /// Looks up the interface that currently has the name.
    ///
    /// # Errors
    /// [`SourceError::NoInterface`] if no interface has the name, or [`SourceError::System`].
    pub(crate) fn look_up(&self) -> Result<InterfaceSnapshot, SourceError> {
        let gone = |call| {
            move |error: io::Error| match error.raw_os_error() {
                Some(libc::ENODEV) => SourceError::NoInterface {
                    interface: self.name.clone(),
                },
                _ => self.error(call, error),
            }
        };
        let (query, name) = (&self.query, self.name.as_str());
        Ok(InterfaceSnapshot {
            index: query.index(name).map_err(gone("ioctl(SIOCGIFINDEX)"))?,
            hardware_type: query
                .hardware_type(name)
                .map_err(gone("ioctl(SIOCGIFHWADDR)"))?,
            flags: query.flags(name).map_err(gone("ioctl(SIOCGIFFLAGS)"))?,
        })
    }

    /// The index of the interface that currently has the name.
    ///
    /// # Errors
    /// `ENODEV` if no interface has the name.
    pub fn index(&self) -> io::Result<i32> {
        self.query.index(&self.name)
    }

    /// The present speed of the link, Mbit/s. `None`: unknown, for example without a carrier.
    #[must_use]
    pub fn speed_mbit(&self) -> Option<u32> {
        self.query.ethtool_speed(&self.name).ok().flatten()
    }

    /// Whether the interface with this index is up, whatever its current name.
    ///
    /// # Errors
    /// `ENODEV` if no interface has the index.
    pub fn is_up(&self, index: i32) -> io::Result<bool> {
        let name = self.query.name(index.cast_unsigned())?;
        Ok(self.query.flags(&name)?.is_up())
    }

    /// Whether the interface with this index currently has the name.
    pub(crate) fn has_name(&self, index: i32) -> bool {
        let found = self.query.index(&self.name);
        found.is_ok_and(|found| found == index)
    }

    /// The MTU of the interface with this index: bytes of the largest packet above the link layer.
    /// `None`: unknown.
    pub(crate) fn mtu(&self, index: i32) -> Option<u32> {
        let name = self.query.name(index.cast_unsigned()).ok()?;
        u32::try_from(self.query.mtu(&name).ok()?).ok()
    }

    pub(crate) fn other_link_type(&self) -> SourceError {
        let name = &self.name;
        SourceError::Unsupported(format!(
            "{name} came back with another link type: start the recording again"
        ))
    }

    pub(crate) fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        SourceError::system(&self.name, call, error)
    }
}
