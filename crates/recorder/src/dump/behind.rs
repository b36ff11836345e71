//! Blocks of a file that are written, and go into its digest, while who made them goes on with the next ones.
//!
//! SHA-256 takes 0.5 to 0.7 s for a GB on a processor with instructions for it, and a disk that writes 2 GB/s as much: one behind the other they would be half as fast as
//! the disk. A file with large blocks has two threads of its own while they come, one that writes and one that digests, each with a queue of a few blocks, so that neither waits for the other.

use std::{
    collections::VecDeque,
    io::{self, Write},
    ops::{Deref, DerefMut, Range},
    panic::resume_unwind,
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver, Sender},
    },
    thread::{Builder, JoinHandle},
};

use retroscope_ring::LargeBuffer;
use sha2::{Digest, Sha256};

use super::{direct::UNIT, disk::DiskFile, names::Directory};
use crate::control::lock;

/// Bytes of a block, at least. With its last packet, of up to 64 KiB, it lies in one huge page, which is one piece to the disk instead of 512: one direct write at a time then
/// reaches 3.0 to 3.5 GB/s on a virtio disk instead of 2.0 to 2.4.
pub(super) const BLOCK_BYTES: usize = LARGE_BYTES - 2 * UNIT - 64 * 1024;
/// Bytes of a huge page.
const LARGE_BYTES: usize = 2 << 20;
/// Bytes of memory from which on it is in huge pages.
const SMALL_BYTES_MAX: usize = 256 * 1024;
/// Blocks of one file on their way at once.
const BLOCKS_MAX: usize = 4;
/// Files with blocks on their way at once; where there are more, who made a block writes it.
const FILES_MAX: usize = 4;
/// Blocks without use that are kept while files have blocks on their way: more than one dump has.
const SPARE_MAX: usize = 16;

/// Bytes in memory that lies as their place in the file does, so that they can be written directly.
#[derive(Debug, Default)]
pub(super) struct Block {
    memory: Memory,
    /// Where in `memory` they lie; the address of the first is behind a multiple of [`UNIT`] by `phase`.
    place: Range<usize>,
    phase: usize,
}

/// Memory of a block.
#[derive(Debug)]
enum Memory {
    Small(Vec<u8>),
    Large(LargeBuffer),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Behind {
    blocks: VecDeque<Arc<Block>>,
    writing: Lane<()>,
    digesting: Option<Lane<Sha256>>,
    permit: Permit,
}

/// A thread that does something with one block after the other, until that fails once. It has a state, which is given back in the end.
#[derive(Debug)]
struct Lane<S> {
    /// `None`: no more come.
    blocks: Option<Sender<Arc<Block>>>,
    done: Receiver<io::Result<()>>,
    thread: Option<JoinHandle<S>>,
}

/// How many files have blocks on their way, and memory for more blocks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocks(Arc<Mutex<BlocksState>>);

#[derive(Debug, Default)]
struct BlocksState {
    /// Files with blocks on their way.
    busy: usize,
    /// Memory of blocks that are written, for the next ones; none where no file is busy.
    spare: Vec<Block>,
}

/// Leave for one file to have blocks on their way.
#[derive(Debug)]
pub(super) struct Permit(Blocks);

impl Default for Memory {
    fn default() -> Self {
        Self::Small(Vec::new())
    }
}

impl Memory {
    /// For so many bytes wherever they begin in a unit.
    fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.saturating_add(2 * UNIT);
        Ok(match bytes {
            ..=SMALL_BYTES_MAX => Self::Small(vec![0; bytes.next_power_of_two()]),
            _ => Self::Large(LargeBuffer::new(bytes)?),
        })
    }
}

impl Deref for Memory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

impl Block {
    /// With memory of a huge page.
    fn large() -> io::Result<Self> {
        Ok(Self {
            memory: Memory::new(LARGE_BYTES - 2 * UNIT)?,
            ..Self::default()
        })
    }

    fn is_large(&self) -> bool {
        self.memory.len() == LARGE_BYTES
    }

    /// For bytes that belong there.
    pub(super) fn start(&mut self, offset: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "below a unit")]
        let phase = (offset % UNIT as u64) as usize;
        self.phase = phase;
        self.place = 0..0;
        if !self.memory.is_empty() {
            self.align();
        }
    }

    /// Finds the place to begin in memory that holds nothing.
    fn align(&mut self) {
        let from = self.memory.as_ptr().align_offset(UNIT) + self.phase;
        self.place = from..from;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.place.clone()]
    }

    pub(super) fn len(&self) -> usize {
        self.place.len()
    }

    /// Bytes that can still be added to the memory that it has.
    fn room(&self) -> usize {
        self.memory.len() - self.place.end
    }

    /// Takes memory for so many bytes, at least twice as much as before.
    #[cold]
    fn grow(&mut self, bytes: usize) -> io::Result<()> {
        let mut larger = Self {
            memory: Memory::new(bytes.max(2 * self.len()))?,
            phase: self.phase,
            ..Self::default()
        };
        larger.align();
        larger.write_all(self.bytes())?;
        *self = larger;
        Ok(())
    }
}

impl Write for Block {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room() < bytes.len() {
            self.grow(self.len() + bytes.len())?;
        }
        let end = self.place.end + bytes.len();
        self.memory[self.place.end..end].copy_from_slice(bytes);
        self.place.end = end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Blocks {
    pub(super) fn permit(&self) -> Option<Permit> {
        let mut state = lock(&self.0);
        let is_free = state.busy < FILES_MAX;
        state.busy += usize::from(is_free);
        is_free.then(|| Permit(self.clone()))
    }

    /// An empty block, with memory if that is to be had.
    pub(super) fn spare(&self) -> Block {
        let spare = lock(&self.0).spare.pop();
        spare.unwrap_or_else(|| Block::large().unwrap_or_default())
    }

    /// Takes a block back for the next ones.
    pub(super) fn take_back(&self, block: Block) {
        let mut state = lock(&self.0);
        if state.busy > 0 && state.spare.len() < SPARE_MAX && block.is_large() {
            state.spare.push(block);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.0.0);
        state.busy -= 1;
        let spare = match state.busy {
            0 => std::mem::take(&mut state.spare),
            _ => Vec::new(),
        };
        drop(state);
        drop(spare);
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
            permit,
        })
    }

    /// Blocks on their way.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
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

    /// Waits for the oldest block: its bytes. After an error those behind it are not written.
    pub(super) fn settle(&mut self) -> io::Result<u64> {
        let Some(block) = self.blocks.pop_front() else {
            return Ok(0);
        };
        self.writing.settle()?;
        if let Some(digesting) = &mut self.digesting {
            digesting.settle()?;
        }
        let bytes = block.len() as u64;
        if let Some(block) = Arc::into_inner(block) {
            self.permit.0.take_back(block);
        }
        Ok(bytes)
    }

    /// The digest, after all blocks.
    pub(super) fn end(mut self) -> Option<Sha256> {
        self.digesting.as_mut().and_then(Lane::end)
    }
}
