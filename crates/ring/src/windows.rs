//! Windows of ring time, and a search among the windows of all active reservations.
//!
//! [`Windows`] is a binary tree in an array, over the windows in the order of their reservations'
//! numbers. A node contains the time range that the windows below it span, so a search skips
//! subtrees that do not touch a bucket. Reservation numbers follow roughly the order of the times
//! that the reservations cover. The windows below a node are therefore close in time, and a search
//! takes some steps per level. With another order a search would visit more windows, with the same
//! result.

use std::ops::RangeInclusive;

/// A range of ring time, such as the times that a reservation wants, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeWindow {
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    /// The reservation wants only buckets whose closing number is at least this. The closing number
    /// of a bucket is the number of buckets that closed before.
    pub(crate) from_closing: u64,
}

/// The windows of the active reservations.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    /// Numbers of reservations, ascending, indexed by leaf. May contain numbers of dropped or
    /// fallen reservations.
    ids: Vec<u64>,
    /// The tree, with a leaf for each place: node 1 is the root, and `2 n` and `2 n + 1` are the
    /// children of node `n`. The length is twice the number of places, which is 0 or a power of
    /// two.
    spans: Vec<TimeWindow>,
}

impl TimeWindow {
    /// Touches no time.
    pub(crate) const EMPTY: Self = Self {
        from_ns: i64::MAX,
        to_ns: i64::MIN,
        from_closing: u64::MAX,
    };

    /// Empty if the end is before the start.
    pub(crate) fn new(from_ns: i64, to_ns: i64) -> Self {
        if from_ns > to_ns {
            return Self::EMPTY;
        }
        Self {
            from_ns,
            to_ns,
            from_closing: 0,
        }
    }

    pub(crate) fn touches(self, min_ns: i64, max_ns: i64) -> bool {
        min_ns <= self.to_ns && max_ns >= self.from_ns && self.from_ns <= self.to_ns
    }

    /// Whether this window contains all times and closing numbers of `other`.
    pub(crate) fn covers(self, other: Self) -> bool {
        self.from_ns <= other.from_ns
            && other.to_ns <= self.to_ns
            && self.from_closing <= other.from_closing
    }

    /// The smallest window that contains both windows.
    fn joined(self, other: Self) -> Self {
        Self {
            from_ns: self.from_ns.min(other.from_ns),
            to_ns: self.to_ns.max(other.to_ns),
            from_closing: self.from_closing.min(other.from_closing),
        }
    }
}

impl Windows {
    /// Makes a tree of windows with the numbers of their reservations, which must ascend. Leaves
    /// room for at least as many more.
    pub(crate) fn of(windows: impl Iterator<Item = (u64, TimeWindow)>) -> Self {
        let (ids, leaves): (Vec<u64>, Vec<TimeWindow>) = windows.unzip();
        let places = (2 * ids.len()).next_power_of_two();
        let mut spans = vec![TimeWindow::EMPTY; places];
        spans.extend(leaves);
        spans.resize(2 * places, TimeWindow::EMPTY);
        for node in (1..places).rev() {
            spans[node] = spans[2 * node].joined(spans[2 * node + 1]);
        }
        Self { ids, spans }
    }

    /// Adds an empty window for a number above all present numbers. `false`: the tree is full, and
    /// nothing was added.
    pub(crate) fn push(&mut self, id: u64) -> bool {
        let has_place = self.ids.len() < self.spans.len() / 2;
        if has_place {
            self.ids.push(id);
        }
        has_place
    }

    /// Changes a window that was added before. No effect if the tree does not have the number.
    pub(crate) fn set(&mut self, id: u64, window: TimeWindow) {
        let Ok(place) = self.ids.binary_search(&id) else {
            return;
        };
        let mut node = self.spans.len() / 2 + place;
        self.spans[node] = window;
        while node > 1 {
            node /= 2;
            let span = self.spans[2 * node].joined(self.spans[2 * node + 1]);
            if std::mem::replace(&mut self.spans[node], span) == span {
                return;
            }
        }
    }

    /// The greatest reservation number below `below` whose window touches these times and includes
    /// this closing number.
    pub(crate) fn youngest(
        &self,
        below: u64,
        min_ns: i64,
        max_ns: i64,
        closing: u64,
    ) -> Option<u64> {
        let places = self.spans.len() / 2;
        let behind = self.ids.partition_point(|id| *id < below);
        let mut node = places + behind.checked_sub(1)?;
        loop {
            let span = self.spans[node];
            if span.touches(min_ns, max_ns) && closing >= span.from_closing {
                if node >= places {
                    return Some(self.ids[node - places]);
                }
                node = 2 * node + 1;
                continue;
            }
            // Continue at the largest subtree that ends directly before this subtree.
            while node.is_multiple_of(2) {
                node /= 2;
            }
            if node == 1 {
                return None;
            }
            node -= 1;
        }
    }

    /// All numbers from after the next smaller number in the tree, or 0, to before the next greater
    /// number. Without a greater number, up to `id`. Only `id` of these numbers is in the tree.
    pub(crate) fn around(&self, id: u64) -> RangeInclusive<u64> {
        let place = self.ids.partition_point(|other| *other < id);
        let before = place.checked_sub(1).map(|place| self.ids[place] + 1);
        let behind = self.ids.get(place + 1).map(|next| next - 1);
        before.unwrap_or(0)..=behind.unwrap_or(id)
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, iter};

    use fastrand::Rng;

    use super::*;

    /// Times that include both extremes and leave some windows empty.
    fn time(rng: &mut Rng) -> i64 {
        match rng.u8(0..20) {
            0 => i64::MIN,
            1 => i64::MAX,
            _ => rng.i64(-50..50),
        }
    }

    #[test]
    fn a_search_finds_what_a_look_at_each_window_finds() {
        for seed in 0..60 {
            let mut rng = Rng::with_seed(seed);
            let mut windows = Windows::default();
            let mut naive = BTreeMap::new();
            let mut found = 0;
            for id in (0..300).filter(|id| id % (1 + seed % 3) == 0) {
                naive.insert(id, (i64::MAX, i64::MIN));
                if !windows.push(id) {
                    let of =
                        |(id, (from, to)): (&u64, &(i64, i64))| (*id, TimeWindow::new(*from, *to));
                    windows = Windows::of(naive.iter().map(of));
                }
                for _ in 0..rng.usize(0..4) {
                    let id = *naive.keys().nth(rng.usize(0..naive.len())).unwrap();
                    if rng.u8(0..3) == 0 {
                        windows.set(id, TimeWindow::EMPTY);
                        naive.remove(&id);
                        break;
                    }
                    let (from, to) = (time(&mut rng), time(&mut rng));
                    windows.set(id, TimeWindow::new(from, to));
                    naive.insert(id, (from, to));
                }
                let (a, b, end) = (time(&mut rng), time(&mut rng), rng.u64(0..id + 2));
                let (min, max) = (a.min(b), a.max(b));
                let touches = |&(_, &(from, to)): &(&u64, &(i64, i64))| {
                    from <= to && min <= to && from <= max
                };
                let expected = naive.range(..end).rev().filter(touches);
                let expected: Vec<u64> = expected.map(|(id, _)| *id).collect();
                let next = |below: &u64| windows.youngest(*below, min, max, 0);
                let got: Vec<u64> = iter::successors(next(&end), next).collect();
                assert_eq!(got, expected, "seed {seed}, {id} made");
                found += got.len();
            }
            assert!(found > 100, "seed {seed} finds hardly anything: {found}");
        }
    }

    #[test]
    fn the_first_of_many_windows_is_found() {
        let windows = (0..65_536).map(|id| (id, TimeWindow::new(id as i64, id as i64 + 1000)));
        let windows = Windows::of(windows);
        let at = |time_ns| windows.youngest(u64::MAX, time_ns, time_ns + 10, 0);
        assert_eq!((at(-11), at(-10), at(66_536)), (None, Some(0), None));
        assert_eq!((at(1000), at(40_000)), (Some(1010), Some(40_010)));
        assert_eq!((at(66_535), windows.around(7)), (Some(65_535), 7..=7));
    }
}
