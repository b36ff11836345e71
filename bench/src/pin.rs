//! Pins threads to CPUs: one CPU for each thread, as long as there are enough.
//!
//! The list of CPUs ([`cpus`]) usually begins with one CPU of each core. Thread `t` of a run in
//! `contest` (in a race: producers first, then consumers) runs on CPU `t` of the list, modulo its
//! length. With enough CPUs, producers and consumers have separate CPUs. With 2 producers and 2
//! consumers on 2 CPUs, producer `i` shares CPU `i` with consumer `i`, so that both CPUs do the
//! same work. The rule is the same for all contestants.

use std::{fs, sync::LazyLock};

use retroscope_capture::CpuList;
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// The CPUs that this process may use, in the order of [`cores_first`]. Empty if the system does
/// not report its CPUs.
pub(crate) fn cpus() -> &'static [usize] {
    static CPUS: LazyLock<Vec<usize>> = LazyLock::new(|| {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let all = 0..CpuSet::MAX_CPU;
        let allowed: Vec<_> = all.filter(|cpu| set.is_set(*cpu)).collect();
        cores_first(&allowed, |cpu| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            fs::read_to_string(path).ok()
        })
    });
    &CPUS
}

fn set_of(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}

/// Number of threads that can run at the same time: the number of [`cpus`], at least 1.
pub(crate) fn cores() -> usize {
    cpus().len().max(1)
}

/// Pins the calling thread to a CPU: number `thread` of [`cpus`], modulo their number. No effect if
/// there are none, or if the system refuses.
pub(crate) fn pin(thread: usize) {
    let cpus = cpus();
    if !cpus.is_empty() {
        let _ = sched_setaffinity(None, &set_of(&[cpus[thread % cpus.len()]]));
    }
}

/// Moves another thread to these CPUs. No effect if there are none, or if the system refuses.
pub(crate) fn move_to(thread: Pid, cpus: &[usize]) {
    if !cpus.is_empty() {
        let _ = sched_setaffinity(Some(thread), &set_of(cpus));
    }
}

/// Calls `work` on these CPUs only. Threads and processes that `work` starts inherit these CPUs;
/// the calling thread gets its previous CPUs back. If `to` is empty or the system refuses, `work`
/// runs on the previous CPUs.
pub(crate) fn confined<T>(to: &[usize], work: impl FnOnce() -> T) -> T {
    let before = sched_getaffinity(None).ok().filter(|_| !to.is_empty());
    if before.is_some() {
        let _ = sched_setaffinity(None, &set_of(to));
    }
    let result = work();
    if let Some(before) = before {
        let _ = sched_setaffinity(None, &before);
    }
    result
}

/// Moves to the front each CPU that is the first of its core, or whose first is unknown or not
/// allowed. `siblings` returns the list of the CPUs that share the core of a CPU, like `0-1`.
fn cores_first(allowed: &[usize], siblings: impl Fn(usize) -> Option<String>) -> Vec<usize> {
    let is_first = |&cpu: &usize| {
        let list = siblings(cpu).and_then(|list| list.trim().parse::<CpuList>().ok());
        let first = list.and_then(|list| list.as_slice().first().copied());
        first.is_none_or(|first| first as usize == cpu || !allowed.contains(&(first as usize)))
    };
    let (firsts, others): (Vec<usize>, Vec<usize>) = allowed.iter().partition(|cpu| is_first(cpu));
    [firsts, others].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_inherits_its_cpus_and_the_caller_keeps_its_own() {
        let allowed = |path: &str| {
            let text = fs::read_to_string(path).unwrap();
            let line = text
                .lines()
                .find(|line| line.starts_with("Cpus_allowed_list"));
            line.unwrap().to_owned()
        };
        let mine = "/proc/thread-self/status";
        let before = allowed(mine);
        let last = *cpus().last().unwrap();
        let started = confined(&[last], || {
            std::thread::spawn(move || allowed(mine)).join().unwrap()
        });
        assert_eq!(started, format!("Cpus_allowed_list:\t{last}"));
        assert_eq!(allowed(mine), before);
        assert_eq!(confined(&[], || allowed(mine)), before);
    }

    #[test]
    fn siblings_come_last() {
        let pairs = |cpu: usize| Some(format!("{},{}\n", cpu % 2, cpu % 2 + 2));
        assert_eq!(cores_first(&[0, 1, 2, 3], pairs), [0, 1, 2, 3]);
        let neighbours = |cpu: usize| Some(format!("{}-{}\n", cpu & !1, cpu | 1));
        assert_eq!(cores_first(&[0, 1, 2, 3], neighbours), [0, 2, 1, 3]);
        assert_eq!(
            cores_first(&[1, 3], neighbours),
            [1, 3],
            "the first may be forbidden"
        );
        assert_eq!(cores_first(&[5, 7], |_| None), [5, 7]);
    }
}
