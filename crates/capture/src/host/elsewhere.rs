//! Interfaces of other network namespaces that stand on one of this namespace: a macvlan or VLAN that was moved into a container.
//!
//! Such an interface names its lower one by index and namespace, and nothing in the lower's namespace names it. So all namespaces that
//! can be found are looked through: those with a name under `/run/netns`, those of processes, and those that this namespace has a number
//! for (`RTM_GETNSID` of ip-netns(8)), which it has for each that one of its interfaces was moved
//! to. One thread enters all namespaces of the first two kinds, which takes CAP_SYS_ADMIN. The
//! kernel lists the links of the last kind for CAP_NET_ADMIN. Nothing is changed.
//!
//! A host may have thousands of namespaces, and a recording waits for the search. The search stops
//! after [`SEARCH_NS_MAX`], and reports how many namespaces it has not seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::MetadataExt,
    },
    path::PathBuf,
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::{
    HostUse,
    ask::list_links,
    links::{Above, Link},
};
use crate::{
    af_packet::sys::InterfaceQuery,
    clock::{SECOND_NS, monotonic_ns},
    netlink::{Message, Netlink, Request, word},
};

/// Where ip-netns(8) keeps names.
const NAMED: &str = "/run/netns";

/// `RTM_NEWNSID`, `RTM_GETNSID`, bytes of `struct rtgenmsg`; `NETNSA_NSID`, `NETNSA_FD` of `linux/net_namespace.h`.
const NEW_ID: u16 = 88;
const GET_ID: u16 = 90;
const FIXED: usize = 1;
const ID: u16 = 1;
const BY_DESCRIPTOR: u16 = 3;

/// How long a search may take, ns. On a virtual machine 1,500 namespaces took 0.25 s.
const SEARCH_NS_MAX: i64 = SECOND_NS;

/// The inode of the first PID namespace (`PROC_PID_INIT_INO` of `linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// A namespace that may be entered: its file, and its name in messages.
type Entrance = (PathBuf, String);

/// Entrances by inode.
type Entrances = BTreeMap<(u64, u64), Entrance>;

/// The links of another namespace, and the number that it has for ours.
type Seen = (Vec<Link>, Option<i32>);

impl HostUse {
    /// The first reason why something was not seen is kept.
    pub(super) fn missed(&mut self, why: String) {
        self.unseen.get_or_insert(why);
    }

    /// A namespace may have gone with its name or process; any other error hides one.
    fn not_reached(&mut self, words: &str, error: &io::Error) {
        let is_gone =
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH);
        if !is_gone {
            self.missed(format!("{words}: {error}"));
        }
    }

    /// Looks in other namespaces for what stands on an interface of the calling thread's network
    /// namespace.
    pub(super) fn search(&mut self, name: &str) -> io::Result<()> {
        self.search_until(name, monotonic_ns().saturating_add(SEARCH_NS_MAX))
    }

    fn search_until(&mut self, name: &str, until_ns: i64) -> io::Result<()> {
        let index = InterfaceQuery::new()?.index(name)?.cast_unsigned();
        let own = File::open("/proc/thread-self/ns/net")?;
        let own_inode = inode(&own.metadata()?);
        let mut places = self.places();
        places.remove(&own_inode);
        let places: Vec<_> = places.into_values().collect();
        let mut here = Netlink::strict()?;
        let mut known = BTreeSet::new();
        let looks = enter_each(&places, until_ns, |file| {
            let id = id_of(&mut here, file)?;
            Ok((look(&own)?, id))
        })?;
        if looks.len() < places.len() {
            self.out_of_time(looks.len(), places.len());
        }
        for ((_, words), opened) in places.iter().zip(looks) {
            let (seen, id) = match opened {
                Ok(Ok((seen, id))) => (Ok(seen), id),
                Ok(Err(error)) => (Err(error), None),
                Err(error) => {
                    self.not_reached(words, &error);
                    continue;
                }
            };
            if self.add(seen, index, words) {
                known.extend(id);
            }
        }
        self.by_number(index, &own, &known, until_ns)
    }

    fn out_of_time(&mut self, seen: usize, all: usize) {
        let seconds = SEARCH_NS_MAX / SECOND_NS;
        self.missed(format!(
            "{seen} of {all} network namespaces were looked into, which took longer than {seconds} s"
        ));
    }

    /// Asks for those that this namespace has a number for and that were not entered.
    fn by_number(
        &mut self,
        index: u32,
        own: &File,
        known: &BTreeSet<i32>,
        until_ns: i64,
    ) -> io::Result<()> {
        let mut netlink = Netlink::strict()?;
        let request = Request::new(GET_ID, &[0; FIXED]);
        let ids = netlink.list(&request, |message| Some(id_in(message)))?;
        for (number, id) in ids.iter().copied().enumerate() {
            if known.contains(&id) || Some(id) == id_of(&mut netlink, own)? {
                continue;
            }
            if monotonic_ns() >= until_ns {
                self.out_of_time(number, ids.len());
                break;
            }
            let words = format!("network namespace {id} of 'ip netns list-id'");
            let links = list_links(&mut netlink, Some(id));
            // It may have got its number by this very question. An error here says nothing of the other namespace.
            let own_id = id_of(&mut netlink, own)?;
            self.add(links.map(|links| (links, own_id)), index, &words);
        }
        Ok(())
    }

    /// Adds those of another namespace's links that stand on the interface of this index; `seen` has the number too that the other has for
    /// ours. Returns whether the other was seen.
    fn add(&mut self, seen: io::Result<Seen>, index: u32, words: &str) -> bool {
        let (links, own_id) = match seen {
            Ok(seen) => seen,
            Err(error) => {
                // A name without a namespace, or one that is gone meanwhile.
                if error.raw_os_error() != Some(libc::EINVAL) {
                    self.missed(format!("{words}: {error}"));
                }
                return false;
            }
        };
        // Without a number nothing there can stand on anything here.
        let stands_here = |link: &&Link| own_id.is_some() && link.is_on(index, own_id);
        for link in links.iter().filter(stands_here) {
            self.above.push(Above {
                is_master: false,
                name: link.name.clone(),
                kind: link.kind.clone(),
                namespace: Some(words.to_owned()),
            });
        }
        true
    }

    /// The namespaces with a name, and those of processes.
    fn places(&mut self) -> Entrances {
        let mut places = Entrances::new();
        match fs::read_dir(NAMED) {
            Err(error) => self.not_reached(NAMED, &error),
            Ok(entries) => {
                for entry in entries {
                    match entry {
                        Ok(entry) => {
                            let name = entry.file_name().to_string_lossy().into_owned();
                            let words = format!("network namespace {}", name.escape_debug());
                            self.note_place(&mut places, entry.path(), words);
                        }
                        Err(error) => self.missed(format!("{NAMED}: {error}")),
                    }
                }
            }
        }
        let sees_all = fs::metadata("/proc/self/ns/pid")
            .is_ok_and(|metadata| metadata.ino() == FIRST_PID_NAMESPACE)
            && fs::metadata("/proc/1").is_ok();
        if !sees_all {
            self.missed("not all processes of this machine are visible here".to_owned());
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let name = entry.file_name();
            if let Some(process) = name.to_str().and_then(|name| name.parse::<i32>().ok()) {
                let words = format!("the network namespace of process {process}");
                self.note_place(&mut places, entry.path().join("ns/net"), words);
            }
        }
        places
    }

    fn note_place(&mut self, places: &mut Entrances, path: PathBuf, words: String) {
        match fs::metadata(&path) {
            Ok(metadata) => {
                places.entry(inode(&metadata)).or_insert((path, words));
            }
            Err(error) => self.not_reached(&words, &error),
        }
    }
}

/// Looks into the calling thread's namespace; `own` is the one that the search began in.
fn look(own: &File) -> io::Result<Seen> {
    let mut netlink = Netlink::strict()?;
    // An upper has given its lower's namespace a number by then.
    let links = list_links(&mut netlink, None)?;
    Ok((links, id_of(&mut netlink, own)?))
}

/// Enters namespaces in their order on one thread, and calls `look` in each. Stops at `until_ns` of
/// the monotonic clock: later namespaces have no outcome. The outer error of an outcome: the
/// namespace could not be opened.
fn enter_each<T: Send>(
    places: &[Entrance],
    until_ns: i64,
    mut look: impl FnMut(&File) -> io::Result<T> + Send,
) -> io::Result<Vec<io::Result<io::Result<T>>>> {
    let mut enter = |(path, _): &Entrance| {
        let file = File::open(path)?;
        let entered = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
        Ok(entered.map_err(io::Error::from).and_then(|()| look(&file)))
    };
    let work = || {
        let in_time = places.iter().take_while(|_| monotonic_ns() < until_ns);
        in_time.map(&mut enter).collect()
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespaces".to_owned());
        let outcome = thread.spawn_scoped(scope, work)?.join();
        Ok(outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// The number that the socket's namespace has for this one; `None`: it has none.
fn id_of(netlink: &mut Netlink, namespace: &File) -> io::Result<Option<i32>> {
    let descriptor = namespace.as_raw_fd();
    let request = Request::new(GET_ID, &[0; FIXED]).with(BY_DESCRIPTOR, &descriptor.to_ne_bytes());
    netlink.ask(&request, |message| Some(id_in(message)))
}

fn id_in(message: Message<'_>) -> Option<i32> {
    let (_, found) = message.parts(NEW_ID, FIXED)?;
    let id = word(found.get(&ID)?, 0)?.cast_signed();
    (id >= 0).then_some(id)
}

/// What tells namespaces apart (namespaces(7)).
fn inode(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A search makes one thread, however many namespaces there are.
    #[test]
    fn one_thread_enters_all_namespaces() {
        let own = || (PathBuf::from("/proc/thread-self/ns/net"), String::new());
        let places = [own(), ("/nonexistent".into(), String::new()), own()];
        let mut threads = Vec::new();
        let look = |_: &File| {
            threads.push(thread::current().id());
            Ok(())
        };
        let looks = enter_each(&places, i64::MAX, look).unwrap();
        let is_open: Vec<_> = looks.iter().map(Result::is_ok).collect();
        assert_eq!(is_open, [true, false, true]);
        if let Some(Ok(Err(error))) = looks.first() {
            eprintln!("SKIP: no right to enter a namespace: {error}");
            return;
        }
        assert_eq!(threads.len(), 2);
        assert_eq!(threads[0], threads[1]);
        assert_ne!(
            threads[0],
            thread::current().id(),
            "this thread stays where it is"
        );
    }

    #[test]
    fn a_search_without_time_says_what_it_has_not_seen() {
        let places = [(PathBuf::from("/proc/thread-self/ns/net"), String::new())];
        let looks = enter_each(&places, i64::MIN, |_| Ok(())).unwrap();
        assert!(looks.is_empty());
        let mut search = HostUse::default();
        search.out_of_time(3, 2000);
        let unseen = search.unseen.unwrap();
        assert!(
            unseen.starts_with("3 of 2000 network namespaces"),
            "{unseen}"
        );
        assert!(!HostUse::default().is_used());
    }

    #[test]
    fn only_what_is_gone_is_not_missed() {
        let mut search = HostUse::default();
        for code in [libc::ENOENT, libc::ESRCH] {
            search.not_reached("blue", &io::Error::from_raw_os_error(code));
            assert_eq!(search.unseen, None);
        }
        for code in [libc::EACCES, libc::EMFILE, libc::EIO] {
            let mut search = HostUse::default();
            search.not_reached("blue", &io::Error::from_raw_os_error(code));
            assert!(search.unseen.is_some_and(|why| why.starts_with("blue: ")));
        }
    }
}
