//! The dump-lister: the thread that lists the dumps of the directory, and opens their files. It
//! has the privileges of the dump-keeper. Because it is another thread, a slow listing does not
//! delay the dump-keeper, which makes room on a full disk.

use std::{
    io::{self, Read},
    sync::{Arc, Mutex, mpsc::SyncSender},
};

use serde_json::Value;

use super::{
    StoreListener, StoredDump,
    keeper::UnfinishedDumps,
    listing::Listing,
    queue::{NextRequest, RequestQueue},
};
use crate::{
    directory::DumpDirectory,
    disk::{DiskFile, sequential},
    lock,
};

/// All dumps of the directory. Simultaneous questions share one list.
pub type StoredDumps = Arc<[Arc<StoredDump>]>;

/// A question to the dump-lister, and the channel for the answer.
#[derive(Debug)]
pub(crate) enum Question {
    List(SyncSender<StoredDumps>),
    Get(String, SyncSender<Option<(StoredDump, Value)>>),
    Open(String, String, SyncSender<io::Result<DumpFileReader>>),
}

/// An open capture file of a dump.
#[derive(Debug)]
pub struct DumpFileReader {
    file: Arc<dyn DiskFile>,
    bytes: u64,
}

impl DumpFileReader {
    /// Number of bytes in the file. For an open dump: bytes that contained whole packets when the
    /// file was opened. After [`Self::set_finished`]: `u64::MAX`.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes the limit on the bytes, because the dump is finished and the file complete.
    pub fn set_finished(&mut self) {
        self.bytes = u64::MAX;
    }

    /// Reads from an offset, like `pread(2)`. Returns the number of bytes, 0 at the end.
    ///
    /// # Errors
    /// The system's error.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let most = buffer.len().min(left);
        self.file.read_at(&mut buffer[..most], offset)
    }

    /// A reader from start to end.
    pub fn into_reader(self) -> impl Read + Send {
        sequential(move |buffer, offset| self.read_at(buffer, offset))
    }
}

/// The state of the dump-lister.
#[derive(Debug)]
pub(super) struct Lister {
    listing: Listing,
    questions: RequestQueue<Question>,
    open: Arc<Mutex<UnfinishedDumps>>,
    listener: Arc<dyn StoreListener>,
    /// The last listing failed, which was reported.
    is_unreadable: bool,
}

impl Lister {
    pub(super) fn new(
        directory: DumpDirectory,
        questions: RequestQueue<Question>,
        open: Arc<Mutex<UnfinishedDumps>>,
        listener: Arc<dyn StoreListener>,
    ) -> Self {
        Self {
            listing: Listing::new(directory),
            questions,
            open,
            listener,
            is_unreadable: false,
        }
    }

    pub(super) fn run(&mut self) {
        while let NextRequest::Request(question) = self.questions.next(None) {
            self.answer(question);
        }
    }

    /// Answers the pending questions.
    #[cfg(test)]
    pub(super) fn answer_all(&mut self) {
        while let NextRequest::Request(question) =
            self.questions.next(Some(std::time::Duration::ZERO))
        {
            self.answer(question);
        }
    }

    fn answer(&mut self, question: Question) {
        match question {
            Question::List(reply) => {
                // A question that arrives during the listing needs the next listing, because its
                // asker may know of a newer dump.
                let is_list = |question: &Question| matches!(question, Question::List(_));
                let others = self.questions.take_all(is_list);
                let all = self.list();
                for other in others {
                    if let Question::List(reply) = other {
                        let _ = reply.send(Arc::clone(&all));
                    }
                }
                let _ = reply.send(all);
            }
            Question::Get(id, reply) => _ = reply.send(self.get(&id)),
            Question::Open(id, name, reply) => _ = reply.send(self.open_file(&id, &name)),
        }
    }

    /// All dumps, the oldest first, open dumps last.
    fn list(&mut self) -> StoredDumps {
        // Read the open dumps first: a dump that is finished during the listing is in the list,
        // open or finished.
        let open = self.open();
        let refreshed = self.listing.refresh();
        if let Err(error) = &refreshed
            && !self.is_unreadable
        {
            let text = format!("the directory of dumps cannot be read: {error}");
            self.listener.notice(text);
        }
        self.is_unreadable = refreshed.is_err();
        let of_open = open.iter();
        let of_open = of_open.map(|(id, dump)| Arc::new(self.listing.stored_open(id, dump)));
        // A dump whose sidecar was just written may be open and finished for a moment.
        let finished = self.listing.shared();
        let finished = finished.filter(|dump| !open.contains_key(&dump.id));
        let mut all: Vec<_> = finished.chain(of_open).collect();
        let key = |dump: &Arc<StoredDump>| (dump.is_open, dump.made_ns, dump.id.clone());
        all.sort_by_cached_key(key);
        all.into()
    }

    /// The dumps that are being written. The writers of dumps also use this lock, so nothing reads
    /// the disk under the lock.
    fn open(&self) -> UnfinishedDumps {
        lock(&self.open).clone()
    }

    fn get(&mut self, id: &str) -> Option<(StoredDump, Value)> {
        // Look up open dumps first, as `list` does.
        if let Some(open) = self.open().get(id) {
            return Some((self.listing.stored_open(id, open), Value::Null));
        }
        self.listing.look_again(id);
        let known = self.listing.get(id)?;
        let told = known.read_sidecar(self.listing.disk()).ok()?;
        Some(((*known.dump).clone(), told))
    }

    fn open_file(&mut self, id: &str, name: &str) -> io::Result<DumpFileReader> {
        let disk = self.listing.disk();
        if let Some(open) = self.open().get(id) {
            let mut files = open.files.iter();
            let file = files.find(|(path, _)| path.file_name().is_some_and(|it| it == name));
            let (path, bytes) = file.ok_or(io::ErrorKind::NotFound)?;
            let file = disk.open_to_read(path)?;
            return Ok(DumpFileReader {
                file,
                bytes: *bytes,
            });
        }
        self.listing.look_again(id);
        let path = self.listing.path(id, name).ok_or(io::ErrorKind::NotFound)?;
        let disk = self.listing.disk();
        let bytes = disk.entry(&path)?.bytes;
        let file = disk.open_to_read(&path)?;
        Ok(DumpFileReader { file, bytes })
    }
}
