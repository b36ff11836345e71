//! Atomic integers and a shared value for use between threads: from `std` and `arc-swap`, or loom's
//! models under `cfg(loom)`.

use std::sync::Arc;

#[cfg(not(loom))]
use arc_swap::ArcSwapOption;
#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

/// A shared value that threads read and replace without locks. Under loom, which cannot model
/// `arc-swap`, a mutex guards the value.
#[derive(Debug)]
#[cfg(not(loom))]
pub(crate) struct SharedValue<T>(ArcSwapOption<T>);
#[derive(Debug)]
#[cfg(loom)]
pub(crate) struct SharedValue<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for SharedValue<T> {
    fn default() -> Self {
        #[cfg(not(loom))]
        return Self(ArcSwapOption::empty());
        #[cfg(loom)]
        return Self(Mutex::new(None));
    }
}

impl<T> SharedValue<T> {
    pub(crate) fn load(&self) -> Option<Arc<T>> {
        #[cfg(not(loom))]
        return self.0.load_full();
        #[cfg(loom)]
        return self.0.lock().unwrap_or_else(|it| it.into_inner()).clone();
    }

    /// Replaces the value `before` with `by`. Returns false if the value is no longer `before`.
    pub(crate) fn replace(&self, before: Option<&Arc<T>>, by: &Arc<T>) -> bool {
        let address = |it: Option<&Arc<T>>| it.map(Arc::as_ptr);
        #[cfg(not(loom))]
        {
            let expected = before.map_or(std::ptr::null(), Arc::as_ptr);
            let found = self.0.compare_and_swap(expected, Some(Arc::clone(by)));
            address(found.as_ref()) == address(before)
        }
        #[cfg(loom)]
        {
            let mut place = self.0.lock().unwrap_or_else(|it| it.into_inner());
            let is_there = address(place.as_ref()) == address(before);
            if is_there {
                *place = Some(Arc::clone(by));
            }
            is_there
        }
    }
}
