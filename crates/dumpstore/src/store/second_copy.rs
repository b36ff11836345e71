//! The space that compression frees at its end. Until then a dump has two copies on the disk.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes of all second copies. Clones share the sum.
#[derive(Debug, Clone, Default)]
pub struct SecondCopies(Arc<AtomicU64>);

/// The second copy of one dump, which counts until this is dropped.
#[derive(Debug)]
pub struct SecondCopy {
    sum: SecondCopies,
    plain_bytes: u64,
    /// The bytes of this copy in the sum.
    bytes: u64,
}

impl SecondCopies {
    /// Bytes that count as free.
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Begins to count a dump of `plain_bytes` that is being compressed.
    pub(super) fn begin(&self, plain_bytes: u64) -> SecondCopy {
        SecondCopy {
            sum: self.clone(),
            plain_bytes,
            bytes: 0,
        }
    }
}

impl SecondCopy {
    /// Sets the current length of the compressed copy.
    pub fn set_bytes(&mut self, bytes: u64) {
        // Either copy may be deleted in the end, so only the length of the smaller copy is certain.
        let bytes = bytes.min(self.plain_bytes);
        self.sum.0.fetch_add(bytes, Relaxed);
        self.sum.0.fetch_sub(self.bytes, Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for SecondCopy {
    fn drop(&mut self) {
        self.sum.0.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_copy_is_given_back_at_the_end() {
        let all = SecondCopies::default();
        let (mut one, mut two) = (all.begin(100), all.begin(1000));
        one.set_bytes(30);
        two.set_bytes(500);
        assert_eq!(all.bytes(), 530);
        one.set_bytes(120);
        assert_eq!(all.bytes(), 600, "no more than the plain file has");
        drop(one);
        assert_eq!(all.bytes(), 500);
        drop(two);
        assert_eq!(all.bytes(), 0);
    }
}
