//! Sessions of the page, links that log in once, and the limit of failed logins.
//!
//! A session is a random value in a cookie. The API keeps only its SHA-256, in memory. A session
//! ends with the token that started it.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{Page, caller::Caller, token::random_text};

const SESSIONS_MAX: usize = 64;
/// Maximum number of sessions of one token or user.
const SESSIONS_OF_ONE_MAX: usize = 16;
/// Maximum number of unused links.
const LINKS_MAX: usize = 16;
pub(crate) const LINK_LIFETIME: Duration = Duration::from_secs(60);
/// Period in which failed logins are counted.
const FAILURE_PERIOD: Duration = Duration::from_secs(60);
/// Failed logins in a period after which logins of an address (IPv6: a /64) are refused.
const FAILURES_MAX: u32 = 10;
/// Maximum number of addresses with separate counts in a period. All other addresses share one
/// count.
const FAILING_ADDRESSES_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Session {
    hash: [u8; 32],
    /// The client that logged in, without `session` and `address`.
    caller: Caller,
    started: Instant,
    used: Mutex<Instant>,
    /// Never cleared after it is set. Readers need no order with other memory.
    has_ended: AtomicBool,
}

impl Session {
    fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn touch(&self, now: Instant) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Link {
    hash: [u8; 32],
    caller: Caller,
    until: Instant,
}

/// The sessions and links of a recorder.
#[derive(Debug)]
pub(crate) struct Sessions {
    /// Time without use after which a session ends.
    pub(crate) idle: Duration,
    /// Maximum age of a session.
    pub(crate) lifetime: Duration,
    open: Mutex<Open>,
    failures: Mutex<Failures>,
}

#[derive(Debug, Default)]
struct Open {
    sessions: Vec<Arc<Session>>,
    links: Vec<Link>,
}

/// Failed logins of the current period.
#[derive(Debug, Default)]
struct Failures {
    /// Time of the first failure.
    since: Option<Instant>,
    /// By the result of [`Self::place`].
    counts: BTreeMap<Option<IpAddr>, u32>,
}

impl Failures {
    /// The address under which failures of `address` are counted: for IPv6 the /64 network, because
    /// a host can take any address of its network. `None`: the count of all addresses beyond
    /// [`FAILING_ADDRESSES_MAX`].
    fn place(&self, address: IpAddr) -> Option<IpAddr> {
        let address = match address.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            address => address,
        };
        let has_room = self.counts.len() < FAILING_ADDRESSES_MAX;
        (has_room || self.counts.contains_key(&Some(address))).then_some(address)
    }

    fn forget_the_past(&mut self, now: Instant) {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= FAILURE_PERIOD;
        if self.since.is_some_and(is_over) {
            *self = Self::default();
        }
    }
}

impl Sessions {
    /// `page` has the times after which sessions end; `None`: sessions end at once.
    pub(crate) fn new(page: Option<Page>) -> Self {
        let (idle, lifetime) = page
            .map(|page| (page.idle, page.lifetime))
            .unwrap_or_default();
        Self {
            idle,
            lifetime,
            open: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a session. Returns the client with its session, and the value of the cookie. If the
    /// account is at its limit, the account's longest idle session ends; otherwise, at the limit of
    /// all sessions, the longest idle session of all.
    ///
    /// # Errors
    ///
    /// The system provides no random numbers.
    pub(crate) fn start(&self, caller: Caller, now: Instant) -> io::Result<(Caller, String)> {
        let value = random_text()?;
        let session = Arc::new(Session {
            hash: Sha256::digest(&value).into(),
            caller: Caller {
                address: None,
                session: None,
                ..caller.clone()
            },
            started: now,
            used: Mutex::new(now),
            has_ended: AtomicBool::new(false),
        });
        let account = &caller.account;
        let is_own = |other: &Arc<Session>| other.caller.account == *account;
        let mut open = self.open();
        self.end_old(&mut open, now);
        let own = open.sessions.iter().filter(|it| is_own(it)).count();
        let is_crowded = open.sessions.len() >= SESSIONS_MAX;
        if own >= SESSIONS_OF_ONE_MAX || is_crowded {
            let all = open.sessions.iter().enumerate();
            let all = all.filter(|(_, it)| own < SESSIONS_OF_ONE_MAX || is_own(it));
            if let Some((oldest, _)) = all.min_by_key(|(_, it)| it.used()) {
                open.sessions.swap_remove(oldest).end();
            }
        }
        open.sessions.push(Arc::clone(&session));
        let caller = Caller {
            session: Some(session),
            ..caller
        };
        Ok((caller, value))
    }

    /// Finds the client of a session by the cookie's value. This counts as use of the session.
    pub(crate) fn find(&self, value: &str, now: Instant) -> Option<Caller> {
        let hash: [u8; 32] = Sha256::digest(value).into();
        let mut open = self.open();
        self.end_old(&mut open, now);
        let mut sessions = open.sessions.iter();
        let session = sessions.find(|it| bool::from(it.hash.ct_eq(&hash)))?;
        session.touch(now);
        Some(Caller {
            session: Some(Arc::clone(session)),
            ..session.caller.clone()
        })
    }

    /// Checks that a session has not ended. This does not count as use of the session.
    ///
    /// # Errors
    ///
    /// A sentence for the user: the session has ended.
    pub(crate) fn check(&self, session: &Session, now: Instant) -> Result<(), String> {
        if session.has_ended.load(Ordering::Relaxed) || self.left(session, now).is_zero() {
            return Err("this session has ended: log in again".to_owned());
        }
        Ok(())
    }

    /// Time until a session ends if it is not used.
    pub(crate) fn left(&self, session: &Session, now: Instant) -> Duration {
        let idle = now.saturating_duration_since(session.used());
        let age = now.saturating_duration_since(session.started);
        let left = self.idle.saturating_sub(idle);
        left.min(self.lifetime.saturating_sub(age))
    }

    fn end_old(&self, open: &mut Open, now: Instant) {
        open.sessions.retain(|session| {
            let is_over = self.left(session, now).is_zero();
            if is_over {
                session.end();
            }
            !is_over
        });
        open.links.retain(|link| now < link.until);
    }

    pub(crate) fn end(&self, session: &Session) {
        session.end();
        let hash = session.hash;
        self.open().sessions.retain(|other| other.hash != hash);
    }

    /// Ends the sessions and links of clients for whom `is_valid` is false. Returns the number of
    /// ended sessions.
    pub(crate) fn end_unless(&self, is_valid: impl Fn(&Caller) -> bool) -> usize {
        let mut open = self.open();
        let before = open.sessions.len();
        open.sessions.retain(|session| {
            let is_valid = is_valid(&session.caller);
            if !is_valid {
                session.end();
            }
            is_valid
        });
        open.links.retain(|link| is_valid(&link.caller));
        before - open.sessions.len()
    }

    /// Makes a code that logs in once, as this client. At the limit, the oldest code becomes
    /// invalid.
    ///
    /// # Errors
    ///
    /// The system provides no random numbers.
    pub(crate) fn link(&self, caller: Caller, now: Instant) -> io::Result<String> {
        let code = random_text()?;
        let mut open = self.open();
        self.end_old(&mut open, now);
        if open.links.len() >= LINKS_MAX {
            open.links.remove(0);
        }
        open.links.push(Link {
            hash: Sha256::digest(&code).into(),
            caller,
            until: now + LINK_LIFETIME,
        });
        Ok(code)
    }

    /// The client of a link's code. The code is invalid afterwards.
    pub(crate) fn redeem(&self, code: &str, now: Instant) -> Option<Caller> {
        let hash: [u8; 32] = Sha256::digest(code).into();
        let mut open = self.open();
        self.end_old(&mut open, now);
        let mut links = open.links.iter();
        let found = links.position(|link| bool::from(link.hash.ct_eq(&hash)))?;
        Some(open.links.remove(found).caller)
    }

    /// Whether an address may try to log in.
    ///
    /// # Errors
    ///
    /// Time until the address may try again.
    pub(crate) fn may_try(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut failures = self.failures();
        failures.forget_the_past(now);
        let place = failures.place(address);
        match (failures.counts.get(&place), failures.since) {
            (Some(count), Some(since)) if *count >= FAILURES_MAX => {
                Err((since + FAILURE_PERIOD).saturating_duration_since(now))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn count_failure(&self, address: IpAddr, now: Instant) {
        let mut failures = self.failures();
        failures.forget_the_past(now);
        failures.since.get_or_insert(now);
        let place = failures.place(address);
        *failures.counts.entry(place).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const IDLE: Duration = Duration::from_secs(1800);
    const LIFETIME: Duration = Duration::from_secs(7200);
    const PAGE: Page = Page {
        idle: IDLE,
        lifetime: LIFETIME,
    };
    const SECOND: Duration = Duration::from_secs(1);

    fn started(sessions: &Sessions, uid: u32, now: Instant) -> String {
        sessions.start(Caller::of_peer(uid, 1), now).unwrap().1
    }

    #[test]
    fn a_session_ends_when_it_is_idle_or_logged_out() {
        let (sessions, start) = (Sessions::new(Some(PAGE)), Instant::now());
        let value = started(&sessions, 7, start);
        assert!(value.len() == 64 && !format!("{sessions:?}").contains(&value));
        let caller = sessions.find(&value, start + IDLE - SECOND).unwrap();
        assert_eq!(&*caller.account, "uid 7");
        let session = caller.session.unwrap();
        // The request above counts as use; a check does not.
        let last = start + IDLE - SECOND;
        assert_eq!(sessions.check(&session, last + IDLE - SECOND), Ok(()));
        assert!(sessions.check(&session, last + IDLE).is_err());
        assert!(sessions.find(&value, last + IDLE).is_none());
        assert!(sessions.check(&session, start).is_err(), "it stays ended");
        let (first, second) = (started(&sessions, 7, start), started(&sessions, 7, start));
        let session = sessions.find(&first, start).unwrap().session.unwrap();
        sessions.end(&session);
        assert!(sessions.check(&session, start).is_err());
        assert!(sessions.find(&first, start).is_none());
        assert!(sessions.find(&second, start).is_some());
        assert_eq!(sessions.end_unless(|_| false), 1);
        assert!(sessions.find(&second, start).is_none());
    }

    #[test]
    fn a_session_has_a_lifetime() {
        let (sessions, start) = (Sessions::new(Some(PAGE)), Instant::now());
        let value = started(&sessions, 7, start);
        let mut now = start;
        while now + IDLE / 2 < start + LIFETIME {
            now += IDLE / 2;
            assert!(sessions.find(&value, now).is_some());
        }
        let session = sessions.find(&value, now).unwrap().session.unwrap();
        let left = start + LIFETIME - now;
        assert_eq!(sessions.left(&session, now), left);
        assert!(sessions.find(&value, now + left).is_none());
        assert!(sessions.check(&session, now + left).is_err());
    }

    #[test]
    fn one_account_does_not_end_the_sessions_of_others() {
        let (sessions, now) = (Sessions::new(Some(PAGE)), Instant::now());
        let [of_one, all] = [SESSIONS_OF_ONE_MAX, SESSIONS_MAX].map(|max| max.try_into().unwrap());
        let other = started(&sessions, 1, now);
        let own: Vec<_> = (0..=of_one)
            .map(|number| started(&sessions, 2, now + SECOND * number))
            .collect();
        let is_open = |value: &String| sessions.find(value, now + SECOND * 60).is_some();
        assert!(is_open(&other) && !is_open(&own[0]) && own[1..].iter().all(is_open));
        for uid in 3..=all {
            started(&sessions, uid, now + SECOND * 60);
        }
        assert_eq!(sessions.open().sessions.len(), SESSIONS_MAX);
    }

    #[test]
    fn a_link_logs_in_once_and_within_its_time() {
        let (sessions, now) = (Sessions::new(Some(PAGE)), Instant::now());
        let link = || sessions.link(Caller::of_peer(7, 1), now).unwrap();
        let code = link();
        assert!(sessions.redeem("", now).is_none());
        let caller = sessions.redeem(&code, now + LINK_LIFETIME - SECOND);
        assert_eq!(&*caller.unwrap().account, "uid 7");
        assert!(sessions.redeem(&code, now).is_none());
        let late = link();
        assert!(sessions.redeem(&late, now + LINK_LIFETIME).is_none());
        let codes: Vec<_> = (0..=LINKS_MAX).map(|_| link()).collect();
        assert!(sessions.redeem(&codes[0], now).is_none());
        assert!(sessions.redeem(&codes[1], now).is_some());
    }

    #[test]
    fn an_address_with_many_failures_waits_and_memory_is_bounded() {
        let (sessions, now) = (Sessions::new(Some(PAGE)), Instant::now());
        let address = |number: u32| IpAddr::V4(Ipv4Addr::from_bits(number));
        for _ in 0..FAILURES_MAX {
            assert_eq!(sessions.may_try(address(0), now), Ok(()));
            sessions.count_failure(address(0), now);
        }
        let later = now + FAILURE_PERIOD - SECOND;
        assert_eq!(sessions.may_try(address(0), later), Err(SECOND));
        assert_eq!(sessions.may_try(address(1), later), Ok(()));
        let of_network = |host: u128| IpAddr::from((0x2001_0db8 << 96 | host).to_be_bytes());
        for host in 0..u128::from(FAILURES_MAX) {
            sessions.count_failure(of_network(host), later);
        }
        assert_eq!(sessions.may_try(of_network(99), later), Err(SECOND));
        assert_eq!(sessions.may_try(address(0), later + SECOND), Ok(()));
        for number in 0..100_000 {
            sessions.count_failure(address(number), later + SECOND);
        }
        let kept = sessions.failures().counts.len();
        assert_eq!(kept, FAILING_ADDRESSES_MAX + 1);
        // Addresses above the limit share one count, so failures of other addresses refuse
        // `address(99_999)`.
        assert_eq!(sessions.may_try(address(3), later + SECOND), Ok(()));
        assert!(sessions.may_try(address(99_999), later + SECOND).is_err());
    }
}
