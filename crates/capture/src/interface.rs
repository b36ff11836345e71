//! An interface by its name, for the engines that follow one: at the start, and when it comes back after it was removed.
//!
//! A removed interface takes its index with it; one of the same name is a new one.

use std::io;

use crate::{
    SourceError,
    af_packet::sys::{Flags, InterfaceQuery},
};

/// A name, and a socket to ask about who has it.
#[derive(Debug)]
pub struct NamedInterface {
    /// The name.
    pub name: String,
    pub(crate) query: InterfaceQuery,
}

/// An interface that was looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InterfaceSnapshot {
    pub(crate) index: i32,
    /// An `ARPHRD_` value.
    pub(crate) hardware_type: u16,
    pub(crate) flags: Flags,
}

impl NamedInterface {
    /// The interface of a name, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No socket can be made.
    pub fn new(name: &str) -> Result<Self, SourceError> {
        let query = InterfaceQuery::new()
            .map_err(|error| SourceError::system(name, "socket(AF_UNIX)", error))?;
        let name = name.to_owned();
        Ok(Self { name, query })
    }

    /// The interface that has the name now.
    ///
    /// # Errors
    /// [`SourceError::NoInterface`] where there is none.
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

    /// The index of the interface that has the name now.
    ///
    /// # Errors
    /// `ENODEV` if no interface has the name.
    pub fn index(&self) -> io::Result<i32> {
        self.query.index(&self.name)
    }

    /// Whether the interface of this index is up, whatever it is called now.
    ///
    /// # Errors
    /// `ENODEV` where there is none.
    pub fn is_up(&self, index: i32) -> io::Result<bool> {
        let name = self.query.name(index.cast_unsigned())?;
        Ok(self.query.flags(&name)?.is_up())
    }

    /// Whether the interface of this index has the name now.
    pub(crate) fn has_name(&self, index: i32) -> bool {
        let found = self.query.index(&self.name);
        found.is_ok_and(|found| found == index)
    }

    /// Bytes of the largest packet above the link layer of the interface of this index, if it is known.
    pub(crate) fn mtu(&self, index: i32) -> Option<u32> {
        let name = self.query.name(index.cast_unsigned()).ok()?;
        u32::try_from(self.query.mtu(&name).ok()?).ok()
    }

    /// An interface that came back is of another kind than the one before.
    pub(crate) fn other_link_type(&self) -> SourceError {
        let name = &self.name;
        SourceError::Unsupported(format!(
            "{name} came back with another link type: start the recording again"
        ))
    }

    /// What failed.
    pub(crate) fn error(&self, call: &'static str, error: io::Error) -> SourceError {
        SourceError::system(&self.name, call, error)
    }
}
