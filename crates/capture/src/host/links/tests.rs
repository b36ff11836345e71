use std::collections::BTreeMap;

use super::*;
use crate::netlink::{List, NetlinkRequest, tests};

#[derive(Debug, Clone)]
struct TestLink {
    index: u32,
    role: Role,
    master: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Nic,
    /// A bridge, bond, team, Open vSwitch or VRF: other links may name this link as their master.
    Master(&'static str),
    /// A VLAN, macvlan or similar link on top of one interface.
    Upper(&'static str, u32),
    /// As `Upper`, on top of an interface of another network namespace.
    UpperOfOther(&'static str, u32, i32),
    /// One end of a pair: its kind, the index of the other end, and the network namespace of the
    /// other end if it is another namespace.
    End(&'static str, u32, Option<i32>),
    Vxlan(Option<u32>),
    Hsr([u32; 2]),
}

const MASTERS: [&str; 5] = ["bridge", "bond", "team", "openvswitch", "vrf"];
const UPPERS: [&str; 7] = ["vlan", "macvlan", "macvtap", "ipvlan", "macsec", "dsa", ""];
const ENDS: [&str; 3] = ["veth", "netkit", "vxcan"];

impl TestLink {
    fn random(random: &mut fastrand::Rng, index: u32, count: u32) -> Self {
        let other = 1 + random.u32(..count);
        let role = match random.u32(..10) {
            0..=2 => Role::Nic,
            3..=4 => Role::Master(random.choice(MASTERS).unwrap()),
            5..=6 => Role::Upper(random.choice(UPPERS).unwrap(), other),
            7 => Role::UpperOfOther(random.choice(UPPERS).unwrap(), other, random.i32(..4)),
            8 => {
                let namespace = random.bool().then(|| random.i32(..4));
                Role::End(random.choice(ENDS).unwrap(), other, namespace)
            }
            _ if random.bool() => Role::Vxlan(random.bool().then_some(other)),
            _ => Role::Hsr([other, 1 + random.u32(..count)]),
        };
        // The master may also be an interface that is no master or does not exist.
        let master = (random.u32(..3) == 0).then(|| 1 + random.u32(..count + 2));
        Self {
            index,
            role,
            master,
        }
    }

    fn kind(&self) -> &'static str {
        match self.role {
            Role::Nic => "",
            Role::Master(kind)
            | Role::Upper(kind, _)
            | Role::UpperOfOther(kind, ..)
            | Role::End(kind, ..) => kind,
            Role::Vxlan(_) => "vxlan",
            Role::Hsr(_) => "hsr",
        }
    }

    /// The link as the kernel lists it, with attributes in any order.
    fn message(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut fixed = [0; LINK_BYTES];
        fixed[4..8].copy_from_slice(&self.index.to_ne_bytes());
        let number = |kind: u16, number: u32| (kind, number.to_ne_bytes().to_vec());
        let name = format!("if{}\0", self.index);
        let mut all = vec![
            (LINK_NAME, name.into_bytes()),
            number(13, 1000),
            (30, vec![6]),
        ];
        all.extend(self.master.map(|master| number(MASTER, master)));
        let mut data = Vec::new();
        match self.role {
            Role::Nic | Role::Master(_) => {}
            Role::Upper(_, lower) => all.push(number(LOWER, lower)),
            Role::UpperOfOther(_, lower, namespace) | Role::End(_, lower, Some(namespace)) => {
                all.push(number(LOWER, lower));
                all.push(number(LOWER_NAMESPACE, namespace.cast_unsigned()));
            }
            Role::End(_, lower, None) => all.push(number(LOWER, lower)),
            Role::Vxlan(lower) => data.extend(lower.map(|lower| number(3, lower))),
            Role::Hsr([one, other]) => data.extend([number(1, one), number(2, other)]),
        }
        if !self.kind().is_empty() {
            let kind = (KIND, format!("{}\0", self.kind()).into_bytes());
            // NLA_F_NESTED.
            let info = bytes_of(&[kind, (DATA | 0x8000, bytes_of(&data))]);
            all.push((INFO | 0x8000, info));
        }
        random.shuffle(&mut all);
        let body = all.iter().fold(
            NetlinkRequest::new(NEW_LINK, &fixed),
            |body, (kind, value)| tests::with_long(body, *kind, value),
        );
        tests::message(NEW_LINK, 1, &body)
    }
}

fn bytes_of(attributes: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let body = attributes
        .iter()
        .fold(NetlinkRequest::new(0, &[]), |body, (kind, value)| {
            tests::with_long(body, *kind, value)
        });
    tests::message(0, 0, &body).split_off(16)
}

/// The links on top of an interface, by a naive search. Maps each index to whether the link is the
/// interface's own master.
fn naive(made: &[TestLink], index: u32) -> BTreeMap<u32, bool> {
    let stands_on = |one: &TestLink, lower: u32| match one.role {
        Role::Upper(_, own) | Role::Vxlan(Some(own)) => own == lower && own != one.index,
        Role::Hsr(own) => own.contains(&lower) && lower != one.index,
        _ => false,
    };
    let mut found = BTreeMap::new();
    loop {
        let before = found.len();
        let lowers: Vec<u32> = found.keys().copied().chain([index]).collect();
        for lower in lowers {
            let of_it = made.iter().find(|one| one.index == lower);
            let master = of_it.and_then(|one| one.master);
            let uppers = made
                .iter()
                .filter(|one| stands_on(one, lower))
                .map(|one| one.index);
            for upper in uppers.chain(master).filter(|upper| *upper != index) {
                found.entry(upper).or_insert(false);
            }
        }
        if found.len() == before {
            break;
        }
    }
    let own = made
        .iter()
        .find(|one| one.index == index)
        .and_then(|one| one.master);
    if let Some(is_master) = own.and_then(|own| found.get_mut(&own)) {
        *is_master = true;
    }
    found
}

fn read_all(bytes: &[u8]) -> std::io::Result<List<HostLink>> {
    let mut list = List::EMPTY;
    list.take(bytes, 1, &mut HostLink::read)?;
    Ok(list)
}

fn seed() -> u64 {
    let given = std::env::var("LINKS_SEED").ok();
    let seed = given.map_or_else(|| fastrand::u64(..), |text| text.parse().unwrap());
    println!("LINKS_SEED={seed}");
    seed
}

#[test]
fn what_stands_on_an_interface_is_what_a_naive_search_finds() {
    let mut random = fastrand::Rng::with_seed(seed());
    let mut found_any = 0;
    for _ in 0..2000 {
        let count = random.u32(1..12);
        let made: Vec<_> = (1..=count)
            .map(|index| TestLink::random(&mut random, index, count))
            .collect();
        let mut messages: Vec<_> = made.iter().map(|one| one.message(&mut random)).collect();
        messages.push(tests::done(1, 0));
        let list = read_all(&messages.concat()).unwrap();
        assert!(list.is_done);
        for index in 1..=count {
            let expected = naive(&made, index);
            let found = upper_links(&list.kept, index);
            found_any += found.len();
            let by_name: BTreeMap<_, _> = found
                .iter()
                .map(|above| (above.name.clone(), above))
                .collect();
            assert_eq!(by_name.len(), found.len(), "one is told twice: {found:?}");
            assert_eq!(
                found.len(),
                expected.len(),
                "{index} of {made:#?}: {found:?}"
            );
            for (upper, is_master) in expected {
                let of_it = made.iter().find(|one| one.index == upper);
                let name = match of_it {
                    Some(_) => format!("if{upper}"),
                    None => format!("interface {upper}"),
                };
                let found = by_name
                    .get(&name)
                    .unwrap_or_else(|| panic!("{name}: {made:#?}"));
                assert_eq!(found.is_master, is_master, "{name}: {made:#?}");
                assert_eq!(found.kind, of_it.map_or("", TestLink::kind));
            }
        }
    }
    assert!(found_any > 1000);
}

#[test]
fn a_list_of_links_that_is_cut_off_is_not_taken_for_the_whole() {
    let mut random = fastrand::Rng::with_seed(seed());
    let messages: Vec<_> = (1..=4)
        .map(|index| TestLink::random(&mut random, index, 4).message(&mut random))
        .collect();
    let whole = [messages.concat(), tests::done(1, 0)].concat();
    for length in 0..whole.len() {
        let list = read_all(&whole[..length]);
        assert!(list.is_err() || !list.unwrap().is_done, "{length}");
    }
}

/// Messages with one random byte cause no panic. Truncated attributes, or a missing name, make the
/// list an error.
#[test]
fn damaged_links_do_not_pass() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..2000 {
        let mut bytes = TestLink::random(&mut random, 1, 9).message(&mut random);
        let at = random.usize(32..bytes.len());
        bytes[at] = random.u8(..);
        if let Ok(list) = read_all(&bytes) {
            upper_links(&list.kept, 1);
        }
    }
    for (kind, value) in [
        (LOWER, &[1, 0][..]),
        (MASTER, &[]),
        (INFO, &[9, 0, 1, 0, 1]),
    ] {
        let body = NetlinkRequest::new(NEW_LINK, &[0; LINK_BYTES])
            .with(LINK_NAME, b"if1\0")
            .with(kind, value);
        assert!(
            read_all(&tests::message(NEW_LINK, 1, &body)).is_err(),
            "{kind}"
        );
    }
    let nameless = tests::message(
        NEW_LINK,
        1,
        &NetlinkRequest::new(NEW_LINK, &[0; LINK_BYTES]),
    );
    assert!(read_all(&nameless).is_err());
}

#[test]
fn names_are_no_commands_to_a_terminal() {
    assert_eq!(text(b"eth0.5\0rest"), "eth0.5");
    assert_eq!(text(b"\x1b[2Jx\0"), "\\u{1b}[2Jx");
}
