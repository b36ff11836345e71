//! Lines in a file.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    os::unix::fs::{FileExt, FileTypeExt},
    path::{Path, PathBuf},
    time::Duration,
};

use retroscope_unix::{Owner, open_to_append};

use super::output::{LineOutput, Trouble};

#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    file: fs::File,
    owner: Owner,
}

impl File {
    pub(super) fn open(path: &Path, owner: Owner) -> Result<Self, String> {
        Ok(Self {
            path: path.to_owned(),
            file: open(path, owner)?,
            owner,
        })
    }
}

impl LineOutput for File {
    fn write(&mut self, bytes: &[u8], _patience: &mut Option<Duration>) -> Result<usize, Trouble> {
        loop {
            match self.file.write(bytes) {
                Ok(0) => return Err(Trouble::Full("nothing could be written".to_owned())),
                Ok(written) => return Ok(written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::Full(error.to_string())),
            }
        }
    }

    fn reopen(&mut self) -> Result<bool, String> {
        self.file = open(&self.path, self.owner)?;
        Ok(true)
    }
}

/// Opens a file for appending. A new file has mode 0640, less the umask, and this owner. Tries to
/// end a torn last line before our first line.
fn open(path: &Path, owner: Owner) -> Result<fs::File, String> {
    // This check only gives a better message than the system's error: `open_to_append` does not
    // wait for a pipe.
    if let Ok(found) = fs::metadata(path) {
        check_kind(found.file_type())?;
    }
    let failed = |error: io::Error| error.to_string();
    let mut file = open_to_append(path, 0o640, owner).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    check_kind(found.file_type())?;
    if found.is_file() && ends_mid_line(&file, found.len()).unwrap_or(false) {
        // If the disk is full, our first line directly follows the torn line.
        let _ = file.write_all(b"\n");
    }
    Ok(file)
}

fn check_kind(kind: fs::FileType) -> Result<(), String> {
    let refused = |what: &str, instead: &str| Err(format!("it is {what}: {instead}"));
    if kind.is_dir() {
        refused("a directory", "name a file in it")
    } else if kind.is_socket() {
        refused("a socket", "write unix: in front of it")
    } else if kind.is_fifo() {
        refused("a pipe", "write - and redirect stdout to it")
    } else {
        Ok(())
    }
}

fn ends_mid_line(file: &fs::File, bytes: u64) -> io::Result<bool> {
    let Some(last_at) = bytes.checked_sub(1) else {
        return Ok(false);
    };
    let mut last = [0];
    file.read_exact_at(&mut last, last_at)?;
    Ok(last != *b"\n")
}
