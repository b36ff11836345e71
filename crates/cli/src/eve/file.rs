//! Lines in a file, which is renamed when it has become large.

use std::{
    fs,
    io::{self, ErrorKind, Write},
    num::NonZeroU32,
    os::unix::fs::{FileExt, FileTypeExt},
    path::{Path, PathBuf},
    time::Duration,
};

use retroscope_unix::{Owner, open_to_append};

use super::{
    Options,
    output::{Output, Trouble},
};

/// A file that lines are appended to.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    file: fs::File,
    /// It is renamed when it would become larger; `None`: never, as what is no regular file.
    rotate_bytes: Option<u64>,
    keep: NonZeroU32,
    owner: Owner,
    bytes: u64,
    /// The last byte does not end a line.
    is_mid_line: bool,
    notice: Option<String>,
}

/// A file that was opened to append to.
struct Opened {
    file: fs::File,
    bytes: u64,
    is_regular: bool,
    /// Somebody wrote a part of a line at its end.
    is_mid_line: bool,
}

impl File {
    pub(super) fn open(path: &Path, options: &Options) -> Result<Self, String> {
        let opened = open(path, options.owner)?;
        let mut file = Self {
            path: path.to_owned(),
            rotate_bytes: options.rotate_bytes.filter(|_| opened.is_regular),
            keep: options.keep,
            owner: options.owner,
            bytes: opened.bytes,
            is_mid_line: false,
            notice: None,
            file: opened.file,
        };
        if opened.is_mid_line {
            file.end_line();
        }
        Ok(file)
    }

    /// Renames the file and those that were renamed before, and begins anew. What goes wrong leaves lines going on into the file that is open.
    fn rotate(&mut self) -> Result<(), String> {
        let named = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        let failed = |error: io::Error| error.to_string();
        for number in (1..self.keep.get()).rev() {
            match fs::rename(named(number), named(number + 1)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        fs::rename(&self.path, named(1)).map_err(failed)?;
        self.reopen().map(|_| ())
    }

    /// How many of these bytes the file may have, so that it does not become too large: whole lines where it is not in the middle of one.
    fn room(&self, bytes: &[u8]) -> usize {
        let first = bytes.iter().position(|byte| *byte == b'\n');
        let first = first.map_or(bytes.len(), |at| at + 1);
        match self.rotate_bytes {
            _ if self.is_mid_line => first,
            None => bytes.len(),
            Some(most) => {
                let room = usize::try_from(most.saturating_sub(self.bytes)).unwrap_or(usize::MAX);
                let fitting = &bytes[..bytes.len().min(room)];
                match fitting.iter().rposition(|byte| *byte == b'\n') {
                    Some(newline) => newline + 1,
                    // A line that is larger than any file may be has one for itself.
                    None if self.bytes == 0 => first,
                    None => 0,
                }
            }
        }
    }

    /// After a line that another program did not end.
    fn end_line(&mut self) {
        // On a full disk the first line of ours stands behind it.
        if self.file.write_all(b"\n").is_ok() {
            self.bytes += 1;
        }
    }
}

impl Output for File {
    fn write(&mut self, bytes: &[u8], _patience: &mut Option<Duration>) -> Result<usize, Trouble> {
        let mut room = self.room(bytes);
        if room == 0 {
            if let Err(why) = self.rotate() {
                let path = self.path.display();
                self.notice = Some(format!(
                    "cannot rename {path} and begin anew: {why}; it grows on"
                ));
                // Not tried again until it has grown by as much once more.
                self.bytes = 0;
            }
            room = self.room(bytes);
        }
        let written = loop {
            match self.file.write(&bytes[..room]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                written => break written,
            }
        };
        match written {
            Ok(0) => Err(Trouble::Full("nothing could be written".to_owned())),
            Ok(written) => {
                self.bytes = self.bytes.saturating_add(written as u64);
                self.is_mid_line = bytes[written - 1] != b'\n';
                Ok(written)
            }
            Err(error) => Err(Trouble::Full(error.to_string())),
        }
    }

    fn reopen(&mut self) -> Result<bool, String> {
        let opened = open(&self.path, self.owner)?;
        (self.file, self.bytes) = (opened.file, opened.bytes);
        self.is_mid_line = false;
        if opened.is_mid_line {
            self.end_line();
        }
        Ok(true)
    }

    fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }
}

/// Opens a file to append to, or makes it: 0640, of this owner.
fn open(path: &Path, owner: Owner) -> Result<Opened, String> {
    // For the message alone. The kind of the file that was opened is checked below.
    if let Ok(found) = fs::metadata(path) {
        check_kind(found.file_type())?;
    }
    let failed = |error: io::Error| error.to_string();
    let file = open_to_append(path, 0o640, owner).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    check_kind(found.file_type())?;
    let is_regular = found.is_file();
    Ok(Opened {
        is_mid_line: is_regular && ends_mid_line(&file, found.len()).unwrap_or(false),
        bytes: found.len(),
        is_regular,
        file,
    })
}

/// Refuses what is no file, and says what to write instead.
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

/// Whether the last byte of a file does not end a line.
fn ends_mid_line(file: &fs::File, bytes: u64) -> io::Result<bool> {
    let Some(last_at) = bytes.checked_sub(1) else {
        return Ok(false);
    };
    let mut last = [0];
    file.read_exact_at(&mut last, last_at)?;
    Ok(last != *b"\n")
}
