//! Small files under `/proc` and `/sys`.

use std::path::Path;

/// The trimmed text of a file. `None` if the file cannot be read.
pub(crate) fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The number in a file. `None` if the file cannot be read or is no unsigned decimal number.
pub(crate) fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.parse().ok()
}
