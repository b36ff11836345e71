//! `Idempotency-Key`: what the last keys were used for. The recorder remembers which dumps they stand for.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use sha2::{Digest, Sha256};

use crate::problem::Problem;

/// Keys that are remembered: as many as the recorder does.
const KEPT: usize = 256;

/// The last keys, and hashes of what they were used for.
#[derive(Debug, Default)]
pub(crate) struct Keys(Mutex<VecDeque<(String, [u8; 32])>>);

impl Keys {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, [u8; 32])>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a key that stands for something else than this.
    pub(crate) fn check(&self, key: &str, of: &str) -> Result<(), Problem> {
        let hash: [u8; 32] = Sha256::digest(of).into();
        let last = self.lock();
        match last.iter().find(|(known, _)| known == key) {
            Some((_, known)) if *known != hash => Err(Problem::senseless(
                "this `Idempotency-Key` stands for another trigger: choose another one",
            )),
            _ => Ok(()),
        }
    }

    /// A key stands for this from now on.
    pub(crate) fn add(&self, key: String, of: &str) {
        let mut last = self.lock();
        if last.iter().any(|(known, _)| *known == key) {
            return;
        }
        last.push_back((key, Sha256::digest(of).into()));
        if last.len() > KEPT {
            last.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_for_one_thing_while_it_is_remembered() {
        let keys = Keys::default();
        assert!(keys.check("a", "x").is_ok());
        keys.add("a".to_owned(), "x");
        keys.add("a".to_owned(), "y");
        assert!(keys.check("a", "x").is_ok() && keys.check("a", "y").is_err());
        assert!(keys.check("b", "y").is_ok());
        (0..KEPT).for_each(|number| keys.add(number.to_string(), "z"));
        assert!(keys.check("a", "y").is_ok(), "it is forgotten");
        assert_eq!(keys.lock().len(), KEPT);
    }
}
