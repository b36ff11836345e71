//! Keys of the header `Idempotency-Key`, each with a hash of its request.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use sha2::{Digest, Sha256};

use crate::problem::Problem;

/// Number of remembered keys.
const KEPT: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct IdempotencyKeys(Mutex<VecDeque<(String, [u8; 32])>>);

impl IdempotencyKeys {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, [u8; 32])>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a key for a request, whose text is `of`. Returns whether the key is new. Check and
    /// reservation are one step: of two clients with the same key and different requests, one is
    /// refused.
    ///
    /// # Errors
    ///
    /// The key belongs to another request.
    pub(crate) fn claim(&self, key: &str, of: &str) -> Result<bool, Problem> {
        let hash: [u8; 32] = Sha256::digest(of).into();
        let mut last = self.lock();
        match last.iter().find(|(known, _)| known == key) {
            Some((_, known)) if *known != hash => {
                return Err(Problem::invalid(
                    "this `Idempotency-Key` was used for another trigger: choose another key",
                ));
            }
            Some(_) => return Ok(false),
            None => {}
        }
        last.push_back((key.to_owned(), hash));
        if last.len() > KEPT {
            last.pop_front();
        }
        Ok(true)
    }

    /// Forgets a key whose request was refused.
    pub(crate) fn release(&self, key: &str) {
        self.lock().retain(|(known, _)| known != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_for_one_thing_while_it_is_remembered() {
        let keys = IdempotencyKeys::default();
        assert!(keys.claim("a", "x").unwrap());
        assert!(!keys.claim("a", "x").unwrap());
        assert!(keys.claim("a", "y").is_err());
        assert!(keys.claim("b", "y").unwrap());
        keys.release("b");
        assert!(keys.claim("b", "z").unwrap(), "what failed leaves it free");
        for number in 0..KEPT {
            assert!(keys.claim(&number.to_string(), "z").unwrap());
        }
        assert!(keys.claim("a", "y").unwrap(), "it is forgotten");
        assert_eq!(keys.lock().len(), KEPT);
    }

    /// Of several clients with the same key and different requests, exactly one gets the key.
    #[test]
    fn one_of_many_has_a_key() {
        let keys = IdempotencyKeys::default();
        let wishes = ["a", "b", "c", "d"];
        let start = std::sync::Barrier::new(wishes.len());
        let claimed = std::thread::scope(|scope| {
            let (keys, start) = (&keys, &start);
            let claim = move |of| {
                start.wait();
                keys.claim("key", of).is_ok()
            };
            let claims = wishes.map(|of| scope.spawn(move || claim(of)));
            claims.map(|claim| claim.join().unwrap())
        });
        assert_eq!(claimed.iter().filter(|it| **it).count(), 1);
    }
}
