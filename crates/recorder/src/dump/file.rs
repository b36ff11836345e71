//! The files of one dump: its sidecar and its captures, for pcap one for each link type.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use retroscope_packet::LinkType;

use super::{
    captures::Captures,
    compress::{ZstdLevel, compress},
    disk::{Disk, file_changed_error, is_same_file},
    names::Directory,
    output::{EncodedPiece, WrittenTotals},
    report::file_name,
    sidecar::Sidecar,
    sink::{SinkContents, SinkEnd},
    store::{
        COMPRESSED_END, PART_END, StoredFile, keeper::UnfinishedDump, second_copy::SecondCopy,
    },
    stream::{CaptureStream, FileDigests, FinishedFile, Heading},
    template::NameFacts,
};

/// If a file name is taken, the recorder tries names with numbers below this limit.
const NAME_TRIES: u64 = 100_000;
/// A new dump tries each number below this limit, and then finds a free number by bisection.
const NAME_TRIES_EACH: u64 = 32;

/// A dump as files `NAME.EXTENSION`. Files that are not complete have `.part` appended.
#[derive(Debug)]
pub(crate) struct DumpFile {
    directory: Directory,
    facts: FileFacts,
    /// The common start of the names of the dump's files.
    stem: String,
    /// Files that are being written, in the order of [`Captures`].
    streams: Vec<CaptureStream>,
    /// The capture files, after they are complete.
    captures: Vec<FinishedFile>,
    interfaces: Vec<u16>,
    /// The ID under which the keeper lists this dump as open.
    listed_id: Option<String>,
    has_sidecar: bool,
    /// The plain captures, while the sidecar lists them and `captures` has the compressed ones.
    plain: Vec<FinishedFile>,
    /// The sidecar's entries of the plain captures; empty as long as no compressed captures exist.
    replaced: Vec<StoredFile>,
    /// Counts the bytes of the second copies at the keeper.
    second: Option<SecondCopy>,
    not_compressed: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct FileFacts {
    pub(crate) names: NameFacts,
    /// The dump's number, as in [`DumpReport::number`](super::report::DumpReport::number).
    pub(crate) number: u64,
    /// The number for the file name.
    pub(crate) name_number: u64,
    /// The source of further numbers if a name is taken.
    pub(crate) next_number: Arc<AtomicU64>,
    pub(crate) heading: Heading,
    /// The name of the dump's rule; `None`: a dump without a rule, by hand or of an IDS alert.
    pub(crate) rule_name: Option<Arc<str>>,
}

impl DumpFile {
    /// A dump without files. Makes no system call.
    pub(crate) fn new(directory: &Directory, facts: FileFacts) -> Self {
        Self {
            directory: directory.clone(),
            stem: directory.stem(&facts.names, facts.name_number, 0),
            facts,
            streams: Vec::new(),
            captures: Vec::new(),
            interfaces: Vec::new(),
            listed_id: None,
            has_sidecar: false,
            plain: Vec::new(),
            replaced: Vec::new(),
            second: None,
            not_compressed: None,
        }
    }

    pub(super) fn digests(&self) -> FileDigests {
        FileDigests::new(self.directory.digests, &self.facts.heading.expected)
    }

    fn tell_open(&mut self) {
        let Some(keeper) = self.directory.keeper() else {
            return;
        };
        let facts = &self.facts;
        let id = self.directory.id(&self.stem);
        let dump = UnfinishedDump {
            number: facts.number,
            rule: facts.names.rule.clone(),
            rule_name: facts.rule_name.as_deref().map(str::to_owned),
            trigger_ns: facts.names.trigger_ns,
            files: self.paths(),
        };
        keeper.register_open(&id, dump);
        self.listed_id = Some(id);
    }

    pub(super) fn tell_bytes(&self) {
        if let (Some(keeper), Some(id)) = (self.directory.keeper(), &self.listed_id) {
            keeper.update_files(id, self.paths());
        }
    }

    fn tell_over(&mut self) {
        if let (Some(keeper), Some(id)) = (self.directory.keeper(), self.listed_id.take()) {
            keeper.register_finished(&id, &self.directory.id(&self.stem));
        }
    }

    /// The paths of the captures, and how many bytes of each are written.
    fn paths(&self) -> Vec<(PathBuf, u64)> {
        let captures = self.captures.iter();
        let captures = captures.map(|capture| (capture.path.clone(), capture.bytes));
        let streams = self.streams.iter();
        let streams = streams.map(|stream| (stream.path().to_owned(), stream.len()));
        captures.chain(streams).collect()
    }

    fn create_first(&mut self, piece: &EncodedPiece) -> io::Result<()> {
        let mut again = 1;
        while again < NAME_TRIES {
            match self.open(piece) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if again == NAME_TRIES_EACH {
                        again = self.first_free();
                    }
                    let facts = &self.facts;
                    let number = facts.next_number.fetch_add(1, Ordering::Relaxed);
                    self.stem = self.directory.stem(&facts.names, number, again);
                    again += 1;
                    continue;
                }
                opened => opened?,
            }
            self.tell_open();
            return Ok(());
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Finds a free number by bisection: to try thousands of taken numbers would take long. Higher
    /// numbers may be taken.
    fn first_free(&self) -> u64 {
        let (mut taken, mut free) = (NAME_TRIES_EACH - 1, 2 * NAME_TRIES_EACH);
        let facts = &self.facts;
        let is_taken = |again| {
            let number = facts.next_number.load(Ordering::Relaxed);
            let stem = self.directory.stem(&facts.names, number, again);
            let extension = self.directory.format.extension();
            let named = |end: &str| self.directory.path().join(format!("{stem}.{end}"));
            let capture = named(extension);
            let compressed = zst(&capture);
            let parts = [part(&capture), part(&compressed)];
            let mut names = [named("json"), capture, compressed]
                .into_iter()
                .chain(parts);
            let disk = self.directory.disk();
            names.any(|name| disk.exists(&name))
        };
        while free < NAME_TRIES && is_taken(free) {
            (taken, free) = (free, 2 * free);
        }
        while free - taken > 1 {
            let middle = taken.midpoint(free);
            if is_taken(middle) {
                taken = middle;
            } else {
                free = middle;
            }
        }
        free
    }

    /// Makes the file of a link type with its first piece. Fails with `AlreadyExists` if any name
    /// of the file is taken.
    fn open(&mut self, piece: &EncodedPiece) -> io::Result<()> {
        let link_type = piece.link_type;
        let path = self.path(link_type);
        let disk = self.directory.disk();
        let names = [self.named("json"), zst(&path), part(&zst(&path))];
        if disk.exists(&path) || names.iter().any(|name| disk.exists(name)) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let stream = CaptureStream::create(&self.directory, part(&path), piece)?;
        let others = self.streams.get(1..).unwrap_or_default();
        let before = others.partition_point(|other| other.link_type.0 < link_type.0);
        let place = self.streams.len().min(1) + before;
        self.streams.insert(place, stream);
        Ok(())
    }

    fn path(&self, link_type: LinkType) -> PathBuf {
        let extension = self.directory.format.extension();
        match self.streams.first() {
            Some(first) if first.link_type != link_type => {
                self.named(&format!("linktype{}.{extension}", link_type.0))
            }
            _ => self.named(extension),
        }
    }

    /// Writes compressed copies of the captures, under their final names.
    ///
    /// # Errors
    /// See [`compress`]; a rename fails, for example because the name is taken. Copies are then
    /// removed if possible.
    fn make_copies(&self, level: ZstdLevel) -> io::Result<(Vec<FinishedFile>, Option<SecondCopy>)> {
        let disk = self.directory.disk();
        let plain_bytes = self.captures.iter().map(|plain| plain.bytes).sum();
        let keeper = self.directory.keeper();
        let mut second = keeper.map(|keeper| keeper.second_copy(plain_bytes));
        let mut made: Vec<FinishedFile> = Vec::new();
        let copied = self.captures.iter().try_for_each(|plain| {
            let before: u64 = made.iter().map(|copy| copy.bytes).sum();
            let mut tell = |bytes| {
                if let Some(second) = &mut second {
                    second.set_bytes(before + bytes);
                }
            };
            let path = zst(&plain.path);
            let mut copy = compress(&self.directory, plain, part(&path), level, &mut tell)?;
            let renamed = disk.rename_new(&copy.path, &path);
            if renamed.is_ok() {
                copy.path = path;
            }
            made.push(copy);
            renamed
        });
        if let Err(error) = copied {
            remove_all(disk, &made);
            return Err(error);
        }
        // The names must be on disk before a sidecar lists the files. A directory that cannot be
        // synced does not fail the dump.
        let _ = disk.sync_directory(self.directory.openable_path());
        Ok((made, second))
    }

    fn remove_copies(&mut self) {
        if !self.plain.is_empty() {
            let copies = std::mem::replace(&mut self.captures, std::mem::take(&mut self.plain));
            remove_all(self.directory.disk(), &copies);
            self.replaced.clear();
            self.second = None;
        }
    }

    fn remove_plain(&mut self) {
        if self.plain.is_empty() {
            return;
        }
        let disk = self.directory.disk();
        // The new sidecar must be on disk first.
        let _ = disk.sync_directory(self.directory.openable_path());
        // A plain file that cannot be removed stays without a sidecar.
        remove_all(disk, &self.plain);
        self.plain.clear();
        self.second = None;
        if let Some(keeper) = self.directory.keeper() {
            keeper.register_changed(&self.directory.id(&self.stem));
        }
    }

    fn not_compressed(&self, error: &io::Error) -> String {
        let captures = self.plain.iter().chain(&self.captures);
        let name = captures.map(|capture| &capture.path).next();
        let name = name.map_or_else(PathBuf::new, |path| file_name(path));
        format!("{}: not compressed: {error}", name.display())
    }

    fn named(&self, extension: &str) -> PathBuf {
        let name = format!("{}.{extension}", self.stem);
        self.directory.path().join(name)
    }

    /// Whether any capture file of the dump still exists, not replaced by another process. While
    /// both copies exist, only the plain captures count, because the sidecar lists these.
    fn is_there(&self) -> io::Result<bool> {
        let disk = self.directory.disk();
        let captures = match self.plain.is_empty() {
            true => &self.captures,
            false => &self.plain,
        };
        for capture in captures {
            if is_same_file(disk, &capture.path, capture.identity)? {
                return Ok(true);
            }
        }
        for stream in &self.streams {
            if is_same_file(disk, stream.path(), stream.identity())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether no file has the name of a plain capture. A capture that another process replaced
    /// does not count as deleted.
    fn is_deleted(&self) -> bool {
        let disk = self.directory.disk();
        let mut captures = match self.plain.is_empty() {
            true => self.captures.iter(),
            false => self.plain.iter(),
        };
        captures.all(|capture| {
            let found = disk.entry(&capture.path);
            found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        })
    }

    /// Computes the missing digests of the finished capture files, if digests are on.
    pub(super) fn compute_digests(&mut self) {
        for capture in &mut self.captures {
            capture.digest(&self.directory);
        }
    }

    /// The sidecar's list of the capture files.
    pub(super) fn files(&self) -> Vec<StoredFile> {
        let name = |path: &Path| file_name(path).to_string_lossy().into_owned();
        let captures = self.captures.iter().map(stored);
        let parts = self.streams.iter().map(|stream| StoredFile {
            name: name(stream.path()),
            bytes: stream.len(),
            sha256: None,
        });
        captures.chain(parts).collect()
    }

    /// Writes or replaces the sidecar. Returns false if no capture exists, or if another process
    /// replaced all captures.
    fn write_sidecar(&mut self, sidecar: &Sidecar) -> io::Result<bool> {
        if !self.is_there()? {
            // A file that now has the name of a capture belongs to another process.
            return Ok(false);
        }
        self.compute_digests();
        let json = sidecar.json(&self.files(), self.directory.below_name())?;
        let path = self.named("json");
        let (part, disk) = (part(&path), self.directory.disk());
        let file = match disk.create(&part) {
            // Usually a killed recorder left this file; the name belongs to this dump now.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.remove(&part)?;
                disk.create(&part)
            }
            created => created,
        }?;
        let written = (self.directory)
            .with_room(json.len(), || file.write_all_at(&json, 0))
            .and_then(|()| file.sync());
        let renamed = written.and_then(|()| {
            // A dump that was deleted during this call must not come back.
            self.directory.without_deletion(|| match self.has_sidecar {
                true if !self.is_there()? => Ok(false),
                true => disk.rename(&part, &path).map(|()| true),
                false => disk.rename_new(&part, &path).map(|()| true),
            })
        });
        if !matches!(renamed, Ok(true)) {
            let _ = disk.remove(&part);
        }
        renamed
    }

    /// Renames a file, and replaces no other file. If the name is taken, the new name gets a
    /// number. A number of the first file is in the names of all later files too.
    fn rename(&mut self, part: &Path, link_type: LinkType) -> io::Result<PathBuf> {
        let is_first = self
            .streams
            .first()
            .is_some_and(|it| it.link_type == link_type);
        let stem = self.stem.clone();
        for n in 2..NAME_TRIES {
            let target = self.path(link_type);
            match self.directory.disk().rename_new(part, &target) {
                Ok(()) => {
                    if !is_first {
                        self.stem = stem;
                    }
                    return Ok(target);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.stem = format!("{stem}.{n}");
                }
                Err(error) => {
                    self.stem = stem;
                    return Err(error);
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for DumpFile {
    fn drop(&mut self) {
        self.tell_over();
    }
}

/// Operations of a worker, which may take as long as the disk takes. After an error only the
/// sidecar is still written.
impl DumpFile {
    /// Makes the first file with its first piece. Called once, before any other piece is written.
    pub(super) fn create(&mut self, piece: &EncodedPiece) -> io::Result<()> {
        let created = self.directory.make();
        let created = created.and_then(|()| self.create_first(piece));
        created.map_err(|error| {
            let text = format!("{}: {error}", self.directory.path().display());
            io::Error::new(error.kind(), text)
        })
    }

    pub(super) fn write(&mut self, piece: &EncodedPiece) -> io::Result<()> {
        let mut streams = self.streams.iter_mut();
        match streams.find(|it| it.link_type == piece.link_type) {
            Some(stream) => stream.write(&self.directory, piece),
            None => self.open(piece),
        }
    }

    /// Merges late packets, syncs and renames. Afterwards no more pieces are written.
    pub(super) fn finish(
        &mut self,
        end: &SinkEnd,
        encoded: Captures,
        digests: &mut FileDigests,
    ) -> io::Result<()> {
        let mut captures = Vec::new();
        for (stream, output) in self.streams.iter_mut().zip(encoded.outputs) {
            let to = (stream, &mut *digests);
            captures.push(output.finish(&self.directory, to, end, &encoded.known)?);
        }
        for (place, capture) in captures.iter_mut().enumerate() {
            let link_type = self.streams[place].link_type;
            capture.path = self.rename(&capture.path, link_type)?;
            // If the next rename fails, the report must have the new name of this file.
            self.streams[place].rename(&capture.path);
        }
        // The files are complete and named, so the dump does not fail if the directory cannot be
        // synced.
        let _ = self
            .directory
            .disk()
            .sync_directory(self.directory.openable_path());
        let SinkContents { interfaces, .. } = self.held();
        (self.captures, self.interfaces) = (captures, interfaces);
        self.streams.clear();
        self.tell_bytes();
        Ok(())
    }

    /// Makes compressed copies of the complete files. After success, the next [`Self::sidecar`]
    /// that succeeds removes the plain files. May take hours.
    pub(super) fn compress(&mut self) {
        let Some(level) = self.directory.zstd else {
            return;
        };
        match self.make_copies(level) {
            Ok((copies, second)) => {
                self.replaced = self.captures.iter().map(stored).collect();
                self.plain = std::mem::replace(&mut self.captures, copies);
                self.second = second;
            }
            // A dump that was deleted needs no explanation.
            Err(_) if self.is_deleted() => {}
            Err(error) => self.not_compressed = Some(self.not_compressed(&error)),
        }
    }

    /// Writes the sidecar through a `.part` file. Returns false if the dump was deleted or has no
    /// file. If the sidecar of compressed files cannot be written, the plain files and the old
    /// sidecar stay.
    pub(super) fn sidecar(&mut self, sidecar: &Sidecar) -> io::Result<bool> {
        let mut written = self.write_sidecar(sidecar);
        if matches!(written, Ok(false)) && !self.plain.is_empty() && !self.is_deleted() {
            written = Err(file_changed_error());
        }
        match &written {
            Ok(true) => {
                self.has_sidecar = true;
                self.tell_over();
                self.remove_plain();
            }
            Ok(false) => self.remove_copies(),
            Err(error) if !self.plain.is_empty() => {
                self.not_compressed = Some(self.not_compressed(error));
                self.remove_copies();
            }
            Err(_) => {}
        }
        written
    }

    /// The files and their contents. As long as no file exists, the name that the first file should
    /// get is listed.
    pub(super) fn held(&self) -> SinkContents {
        let captures = self.captures.iter().map(|capture| capture.path.clone());
        let parts = self.streams.iter().map(|stream| stream.path().to_owned());
        let mut locations: Vec<PathBuf> = captures.chain(parts).collect();
        if locations.is_empty() {
            locations.push(self.named(self.directory.format.extension()));
        }
        let streams = || self.streams.iter();
        let described = streams().flat_map(|stream| stream.interfaces.iter());
        SinkContents {
            safe: streams().fold(WrittenTotals::default(), |sum, stream| {
                sum.with(stream.safe)
            }),
            locations,
            interfaces: self.interfaces.iter().chain(described).copied().collect(),
            id: self.directory.id(&self.stem),
            files: self.files(),
            replaced: self.replaced.clone(),
            note: self.not_compressed.clone(),
        }
    }

    pub(super) fn open_files(&self) -> usize {
        self.streams.iter().filter(|it| it.is_open()).count()
    }

    /// Closes the descriptors. They are opened again when they are needed.
    pub(super) fn close_files(&mut self) {
        for stream in &mut self.streams {
            stream.close();
        }
    }
}

fn remove_all(disk: &dyn Disk, files: &[FinishedFile]) {
    files.iter().for_each(|file| _ = disk.remove(&file.path));
}

fn stored(capture: &FinishedFile) -> StoredFile {
    StoredFile {
        name: file_name(&capture.path).to_string_lossy().into_owned(),
        bytes: capture.bytes,
        sha256: capture.sha256.clone(),
    }
}

fn part(path: &Path) -> PathBuf {
    with_end(path, PART_END)
}

fn zst(path: &Path) -> PathBuf {
    with_end(path, COMPRESSED_END)
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
