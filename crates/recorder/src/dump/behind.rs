//! Blocks of a file that are written, and go into its digest, while who made them goes on with the next ones.
//!
//! SHA-256 takes 0.5 to 0.7 s for a GB on a processor with instructions for it, and a disk that writes 2 GB/s as much: one behind the other they would be half as fast as
//! the disk. A file with large blocks has two threads of its own while they come, one that writes and one that digests, each with a queue of a few blocks, so that neither waits for the other.

use std::{
    collections::VecDeque,
    io::{self, Write},
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{Builder, JoinHandle},
};

use sha2::{Digest, Sha256};

use super::{direct::UNIT, disk::DiskFile, names::Directory};

/// Bytes of a block. One of 2 MiB at a time reaches 0.97 of what eight at once do (fio, direct, a virtio disk).
pub(super) const BLOCK_BYTES: usize = 2 << 20;
/// Blocks of one file on their way at once.
const BLOCKS_MAX: usize = 4;
/// Files with blocks on their way at once; where there are more, who made a block writes it.
const FILES_MAX: usize = 4;

/// Bytes in memory that lies as their place in the file does, so that they can be written directly.
#[derive(Debug, Default)]
pub(super) struct Block {
    memory: Vec<u8>,
    /// Where in `memory` they begin; its address is behind a multiple of [`UNIT`] by `phase`.
    from: usize,
    phase: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Behind {
    blocks: VecDeque<Arc<Block>>,
    writing: Lane<()>,
    digesting: Option<Lane<Sha256>>,
    _permit: Permit,
}

/// A thread that does something with one block after the other, until that fails once. It has a state, which is given back in the end.
#[derive(Debug)]
struct Lane<S> {
    /// `None`: no more come.
    blocks: Option<Sender<Arc<Block>>>,
    done: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<S>>,
}

/// How many files have blocks on their way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Files(Arc<AtomicUsize>);

/// Leave for one file to have blocks on their way.
#[derive(Debug)]
struct Permit(Files);

impl Block {
    /// For bytes that belong there.
    pub(super) fn start(&mut self, offset: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "below a unit")]
        let phase = (offset % UNIT as u64) as usize;
        (self.phase, self.from) = (phase, 0);
        self.memory.clear();
        if self.memory.capacity() > 0 {
            self.align();
        }
    }

    /// An empty one with as much memory.
    pub(super) fn with_memory_of(other: &Self) -> Self {
        Self {
            memory: Vec::with_capacity(other.memory.capacity()),
            ..Self::default()
        }
    }

    /// Finds the place to begin in memory that holds nothing.
    fn align(&mut self) {
        self.from = self.memory.as_ptr().align_offset(UNIT) + self.phase;
        self.memory.resize(self.from, 0);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.from..]
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len() - self.from
    }

    /// Gives back memory for more bytes than these, and forgets what is there.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        if self.memory.capacity() > bytes + 2 * UNIT {
            *self = Self::default();
        }
    }

    /// Takes memory for so many bytes.
    #[cold]
    fn grow(&mut self, bytes: usize) {
        let old = std::mem::take(&mut self.memory);
        let bytes = bytes.next_power_of_two().max(UNIT);
        self.memory.reserve_exact(bytes + 2 * UNIT);
        let from = self.from;
        self.align();
        self.memory.extend_from_slice(&old[from..]);
    }
}

impl Write for Block {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.memory.capacity() - self.memory.len() < bytes.len() {
            self.grow(self.len() + bytes.len());
        }
        self.memory.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Files {
    fn permit(&self) -> Option<Permit> {
        // A number that stands alone.
        let more = |now| (now < FILES_MAX).then_some(now + 1);
        let taken = (self.0).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Permit(self.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S: Send + 'static> Lane<S> {
    fn start(
        name: &str,
        mut state: S,
        mut act: impl FnMut(&mut S, &Block) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (blocks, to_do) = mpsc::channel::<Arc<Block>>();
        let (tell, done) = mpsc::channel();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            for block in to_do {
                let result = act(&mut state, &block);
                // Who hears that it is done may fill it again.
                drop(block);
                let has_failed = result.is_err();
                if tell.send(result).is_err() || has_failed {
                    break;
                }
            }
            state
        })?;
        Ok(Self {
            blocks: Some(blocks),
            done,
            thread: Some(thread),
        })
    }

    fn push(&self, block: &Arc<Block>) {
        if let Some(blocks) = &self.blocks {
            // A thread that is gone has told why, or panicked: `settle` finds both.
            let _ = blocks.send(Arc::clone(block));
        }
    }

    /// What became of the oldest block.
    fn settle(&mut self) -> io::Result<()> {
        self.done.recv().unwrap_or_else(|_| {
            self.end();
            Err(io::Error::other("a thread that writes blocks has ended"))
        })
    }

    /// Its state, after all blocks.
    fn end(&mut self) -> Option<S> {
        self.blocks = None;
        let thread = self.thread.take()?;
        Some(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl<S> Drop for Lane<S> {
    /// Its thread ends before it does.
    fn drop(&mut self) {
        self.blocks = None;
        // A panic was told by the thread itself.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Behind {
    /// Begins with a block at `offset`. `digest`: of all before it. `None`: too many files have some, or there are no threads to be had.
    pub(super) fn start(
        directory: &Directory,
        (file, offset): (Arc<dyn DiskFile>, u64),
        digest: Option<&Sha256>,
    ) -> Option<Self> {
        let permit = directory.behind.permit()?;
        let (directory, mut offset) = (directory.clone(), offset);
        let write = move |(): &mut (), block: &Block| {
            let bytes = block.bytes();
            directory.with_room(bytes.len(), || file.write_all_at(bytes, offset))?;
            offset += bytes.len() as u64;
            Ok(())
        };
        let update = |digest: &mut Sha256, block: &Block| {
            digest.update(block.bytes());
            Ok(())
        };
        let digesting = digest.map(|digest| Lane::start("dump-digest", digest.clone(), update));
        Some(Self {
            blocks: VecDeque::new(),
            digesting: digesting.transpose().ok()?,
            writing: Lane::start("dump-block", (), write).ok()?,
            _permit: permit,
        })
    }

    /// Blocks on their way.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of them.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.len() as u64).sum()
    }

    /// Whether one must be settled before another one begins.
    pub(super) fn is_full(&self) -> bool {
        self.blocks.len() >= BLOCKS_MAX
    }

    /// Begins to write the next block.
    pub(super) fn begin(&mut self, block: Block) {
        let block = Arc::new(block);
        self.writing.push(&block);
        if let Some(digesting) = &self.digesting {
            digesting.push(&block);
        }
        self.blocks.push_back(block);
    }

    /// Waits for the oldest block: its bytes, and memory to be filled again. After an error those behind it are not written.
    pub(super) fn settle(&mut self) -> io::Result<(u64, Block)> {
        let Some(block) = self.blocks.pop_front() else {
            return Ok((0, Block::default()));
        };
        self.writing.settle()?;
        if let Some(digesting) = &mut self.digesting {
            digesting.settle()?;
        }
        let bytes = block.len() as u64;
        Ok((bytes, Arc::into_inner(block).unwrap_or_default()))
    }

    /// The digest, after all blocks.
    pub(super) fn end(mut self) -> Option<Sha256> {
        self.digesting.as_mut().and_then(Lane::end)
    }
}
