//! Small files of the kernel, under `/proc` and `/sys`.

use std::path::Path;

/// The text of a small file under `/proc` or `/sys`, without blanks around it; `None` if it is not
/// there.
pub(crate) fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// The number in such a file.
pub(crate) fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.parse().ok()
}
