//! The output stream of a writer, which stops at the first failure.

use std::io::Write;

use crate::WriteError;

/// Counts the written bytes, and accepts nothing after a failure, because the stream may then end
/// inside a record.
#[derive(Debug)]
pub(super) struct CountingSink<W> {
    pub(super) inner: W,
    /// Bytes of the file header and of whole records and blocks.
    written: u64,
    failed: bool,
}

impl<W: Write> CountingSink<W> {
    pub(super) fn new(inner: W) -> Self {
        Self {
            inner,
            written: 0,
            failed: false,
        }
    }

    /// Writes one file header, record or block, given in parts.
    #[inline]
    pub(super) fn write(&mut self, parts: [&[u8]; 3]) -> Result<(), WriteError> {
        self.attempt(|inner| {
            parts
                .into_iter()
                .filter(|part| !part.is_empty())
                .try_for_each(|part| inner.write_all(part))
        })?;
        self.written += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<W, WriteError> {
        self.attempt(Write::flush)?;
        Ok(self.inner)
    }

    #[inline]
    fn attempt(
        &mut self,
        operation: impl FnOnce(&mut W) -> std::io::Result<()>,
    ) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::Failed);
        }
        operation(&mut self.inner).map_err(|error| {
            self.failed = true;
            WriteError::Io {
                written: self.written,
                error,
            }
        })
    }
}

/// The captured length of a packet of `bytes` bytes, if it is at most `limit`.
pub(super) fn captured_len(bytes: usize, limit: u32) -> Result<u32, WriteError> {
    let captured_len = u32::try_from(bytes).ok();
    captured_len
        .filter(|length| *length <= limit)
        .ok_or(WriteError::TooLong {
            what: "a packet",
            bytes,
            limit: limit as usize,
        })
}
