//! Follows growing files by device and inode instead of by name. A renamed file is read until it
//! stops growing, and the new file of that name from its beginning.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, ErrorKind, Read as _, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, Instant},
};

use retroscope_alert::LineSplitter;
use retroscope_recorder::AlertLines;
use rustix::io::Errno;

use super::files;
use crate::failure::say;

/// After this many bytes of a file, the next file is read.
const TURN_BYTES: usize = 1 << 20;
/// A file whose name no longer matches is closed after it did not grow for this time, because its
/// writer has usually opened a new file by then.
const NAMELESS: Duration = Duration::from_secs(10);
/// Minimum interval between two listings of the names. Open files are also read between listings.
const NAMES_EVERY: Duration = Duration::from_millis(100);

/// Follows the files of `--alerts` as they grow, also after a rename.
#[derive(Debug)]
pub(super) struct Follower {
    /// Paths of `--alerts`, with wildcards; [`files`] lists the files that match.
    patterns: Vec<String>,
    /// Open files by device and inode.
    files: BTreeMap<(u64, u64), FollowedFile>,
    looked_at: Option<Instant>,
    /// Messages about missing and unreadable files. Each message is printed once.
    reported: BTreeSet<String>,
}

#[derive(Debug)]
struct FollowedFile {
    file: File,
    read: u64,
    lines: LineSplitter,
    has_name: bool,
    grew_at: Instant,
}

impl Follower {
    /// Starts at the end of existing files, because their lines are older than the recording.
    pub(super) fn new(patterns: Vec<String>, now: Instant) -> Self {
        let mut follower = Self {
            patterns,
            files: BTreeMap::new(),
            looked_at: None,
            reported: BTreeSet::new(),
        };
        follower.look_for_names(now, true);
        follower
    }

    pub(super) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    fn look_for_names(&mut self, now: Instant, is_first: bool) {
        self.looked_at = Some(now);
        self.files.values_mut().for_each(|it| it.has_name = false);
        for pattern in &self.patterns {
            let paths = files(pattern);
            // `files` finds nothing if no file matches or if a directory cannot be searched. The
            // error of `metadata` tells the cases apart, unless the directory has wildcards.
            if paths.is_empty()
                && let Err(error) = fs::metadata(pattern)
                && (is_first || error.kind() != ErrorKind::NotFound)
            {
                report(&mut self.reported, Path::new(pattern), &error);
            }
            for path in paths {
                match follow(&mut self.files, &path, now, is_first) {
                    // The file was removed after the listing.
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => report(&mut self.reported, &path, &error),
                    Ok(()) => {}
                }
            }
        }
        self.files
            .retain(|_, it| it.has_name || now.saturating_duration_since(it.grew_at) < NAMELESS);
    }

    /// Passes new lines of the files to `line`. Returns whether more lines may be available at
    /// once.
    pub(super) fn read(
        &mut self,
        now: Instant,
        buffer: &mut [u8],
        counts: &mut AlertLines,
        mut line: impl FnMut(&[u8], &mut AlertLines),
    ) -> bool {
        let is_due = |at: Instant| now.saturating_duration_since(at) >= NAMES_EVERY;
        if self.looked_at.is_none_or(is_due) {
            self.look_for_names(now, false);
        }
        let mut is_more = false;
        for followed in self.files.values_mut() {
            let FollowedFile {
                file,
                read,
                lines,
                grew_at,
                ..
            } = followed;
            if file.metadata().is_ok_and(|meta| meta.len() < *read) {
                // The file was truncated, usually to be rewritten.
                counts.torn += u64::from(lines.end().is_some());
                *read = file.seek(SeekFrom::Start(0)).unwrap_or(0);
            }
            let mut in_turn = 0;
            while let Ok(count @ 1..) = file.read(buffer) {
                *read += count as u64;
                *grew_at = now;
                let too_long = lines.push(&buffer[..count], |text| line(text, counts));
                counts.lines += too_long;
                counts.torn += too_long;
                in_turn += count;
                if in_turn >= TURN_BYTES {
                    is_more = true;
                    break;
                }
            }
        }
        is_more
    }
}

/// Opens a file, unless the file is open already, under this or another name. `is_first`: skip the
/// lines that the file already contains.
fn follow(
    files: &mut BTreeMap<(u64, u64), FollowedFile>,
    path: &Path,
    now: Instant,
    is_first: bool,
) -> io::Result<()> {
    let meta = fs::metadata(path)?;
    if let Some(known) = files.get_mut(&(meta.dev(), meta.ino())) {
        known.has_name = true;
        return Ok(());
    }
    if meta.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    let mut file = File::open(path)?;
    let end = if is_first {
        SeekFrom::End(0)
    } else {
        SeekFrom::Start(0)
    };
    let read = file.seek(end)?;
    let meta = file.metadata()?;
    files.insert(
        (meta.dev(), meta.ino()),
        FollowedFile {
            file,
            read,
            lines: LineSplitter::default(),
            has_name: true,
            grew_at: now,
        },
    );
    Ok(())
}

/// Prints, once, why a file is not followed yet.
fn report(reported: &mut BTreeSet<String>, path: &Path, error: &io::Error) {
    let why = match error.kind() {
        ErrorKind::NotFound => "no such file yet; waiting for it".to_owned(),
        ErrorKind::PermissionDenied => {
            format!("{error}: the recorder's user must be able to read it; trying again")
        }
        _ => format!("{error}; trying again"),
    };
    let message = format!("--alerts {}: {why}", path.display());
    if !reported.contains(&message) {
        say(&message);
        reported.insert(message);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    struct Rig {
        dir: tempfile::TempDir,
        follower: Follower,
        now: Instant,
        counts: AlertLines,
    }

    impl Rig {
        fn new(before: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("eve.json"), before).unwrap();
            let pattern = format!("{}/eve*.json", dir.path().display());
            let now = Instant::now();
            Self {
                follower: Follower::new(vec![pattern], now),
                dir,
                now,
                counts: AlertLines::default(),
            }
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.dir.path().join(name)
        }

        fn append(&self, name: &str, text: &str) {
            let open = File::options()
                .create(true)
                .append(true)
                .open(self.path(name));
            open.unwrap().write_all(text.as_bytes()).unwrap();
        }

        /// Advances the clock and returns all new lines, file by file.
        fn read(&mut self) -> Vec<String> {
            self.now += NAMES_EVERY;
            let mut all = Vec::new();
            let mut buffer = [0; 7];
            while self
                .follower
                .read(self.now, &mut buffer, &mut self.counts, |line, _| {
                    all.push(String::from_utf8(line.to_vec()).unwrap());
                })
            {}
            all
        }
    }

    #[test]
    fn lines_that_are_added_are_read_whole_and_once() {
        let mut rig = Rig::new("old\nold too\n");
        assert!(rig.read().is_empty());
        rig.append("eve.json", "one\ntw");
        assert_eq!(rig.read(), ["one"]);
        rig.append("eve.json", "o\n");
        rig.append("eve.2.json", "a\nb\n");
        let mut both = rig.read();
        both.sort();
        assert_eq!(
            both,
            ["a", "b", "two"],
            "a file that comes later is read from its beginning"
        );
        assert!(rig.read().is_empty());
    }

    #[test]
    fn a_file_that_is_rotated_is_read_to_its_end() {
        let mut rig = Rig::new("");
        rig.append("eve.json", "one\n");
        fs::rename(rig.path("eve.json"), rig.path("old.1")).unwrap();
        rig.append("eve.json", "three\n");
        rig.append("old.1", "two\n");
        let mut all = rig.read();
        all.sort();
        assert_eq!(all, ["one", "three", "two"]);
        // After a rename to another matching name the file is still the same file.
        fs::rename(rig.path("eve.json"), rig.path("eve.1.json")).unwrap();
        rig.append("eve.1.json", "four\n");
        assert_eq!(rig.read(), ["four"]);
        // The writer keeps the renamed file open for a while.
        rig.append("old.1", "late\n");
        assert_eq!(rig.read(), ["late"]);
        rig.now += NAMELESS;
        rig.read();
        rig.append("old.1", "never\n");
        assert!(rig.read().is_empty());
        assert!(Path::new(&rig.path("old.1")).exists());
    }

    #[test]
    fn a_file_that_is_made_empty_begins_anew() {
        let mut rig = Rig::new("");
        rig.append("eve.json", "one\nhalf a li");
        assert_eq!(rig.read(), ["one"]);
        fs::write(rig.path("eve.json"), "two\n").unwrap();
        assert_eq!(rig.read(), ["two"]);
        assert_eq!(rig.counts.torn, 1);
    }

    #[test]
    fn a_missing_or_unreadable_file_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eve.json");
        let now = Instant::now();
        let mut follower = Follower::new(vec![path.display().to_string()], now);
        let messages = |follower: &Follower| Vec::from_iter(follower.reported.clone());
        let [waiting] = &messages(&follower)[..] else {
            panic!("{follower:?}")
        };
        assert!(waiting.contains("eve.json") && waiting.contains("waiting"));
        // Root can read every file, but no directory.
        fs::create_dir(&path).unwrap();
        for _ in 0..2 {
            follower.look_for_names(now, false);
            let messages = messages(&follower);
            assert_eq!(messages.len(), 2, "{messages:?}");
            assert!(messages.iter().any(|it| it.contains("os error 21")));
        }
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        follower.look_for_names(now, false);
        assert_eq!((follower.files.len(), follower.reported.len()), (1, 2));
    }
}
