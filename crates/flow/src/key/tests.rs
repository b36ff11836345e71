use std::collections::HashSet;

use retroscope_packet::{LinkType, parse};

use super::*;

/// The key and direction of an IPv4 packet from 10.0.0.`src` to 10.0.0.`dst` with these VLAN tags.
fn ends(vlans: &[u16], src: u8, dst: u8, proto: u8, payload: &[u8]) -> DirectedKey {
    let mut frame = vec![2; 12];
    for id in vlans {
        frame.extend([0x81, 0]);
        frame.extend(id.to_be_bytes());
    }
    let len = u8::try_from(20 + payload.len()).unwrap();
    frame.extend([8, 0, 0x45, 0, 0, len, 0, 0, 0, 0, 64, proto, 0, 0]);
    frame.extend([10, 0, 0, src, 10, 0, 0, dst]);
    frame.extend(payload);
    DirectedKey::of(&parse(LinkType::ETHERNET, &frame), true).unwrap()
}

#[test]
fn both_directions_have_one_key() {
    let there = ends(&[], 1, 2, 17, &[0, 53, 4, 210, 0, 8, 0, 0]);
    let back = ends(&[], 2, 1, 17, &[4, 210, 0, 53, 0, 8, 0, 0]);
    assert_eq!(there.key, back.key);
    assert_eq!((there.is_reverse, back.is_reverse), (false, true));
    let [low, high] = there.key.endpoints().unwrap();
    assert_eq!(
        (low.to_string(), high.to_string()),
        ("10.0.0.1:53".to_owned(), "10.0.0.2:1234".to_owned())
    );
    assert_eq!(
        (there.key.family(), there.key.proto()),
        (AddressKind::V4, 17)
    );
    // From a host to itself, between two ports.
    let there = ends(&[], 1, 1, 17, &[0, 53, 4, 210, 0, 8, 0, 0]);
    let back = ends(&[], 1, 1, 17, &[4, 210, 0, 53, 0, 8, 0, 0]);
    assert_eq!(there.key, back.key);
    assert_ne!(there.is_reverse, back.is_reverse);
}

#[test]
fn tags_tell_flows_apart_where_they_are_wanted() {
    let udp = [0, 53, 4, 210, 0, 8, 0, 0];
    let keys: HashSet<_> = [&[][..], &[0], &[5], &[5, 6], &[5, 6, 7], &[6, 5]]
        .map(|vlans| {
            let key = ends(vlans, 1, 2, 17, &udp).key;
            assert_eq!(key.vlans().collect::<Vec<_>>(), vlans);
            key.words()
        })
        .into();
    assert_eq!(keys.len(), 6);
}

#[test]
fn icmp_is_told_apart_as_a_community_id_does() {
    let (ask, answer) = (
        ends(&[], 1, 2, 1, &[8, 0, 0, 0]),
        ends(&[], 2, 1, 1, &[0, 0, 0, 0]),
    );
    assert_eq!(ask.key, answer.key);
    assert_ne!(ask.is_reverse, answer.is_reverse);
    let (there, back) = (
        ends(&[], 1, 2, 1, &[3, 1, 0, 0]),
        ends(&[], 2, 1, 1, &[3, 1, 0, 0]),
    );
    assert_ne!(there.key, back.key);
    assert_ne!(there.key, ends(&[], 1, 2, 1, &[3, 2, 0, 0]).key);
    assert!(!there.is_reverse && !back.is_reverse);
}

#[test]
fn what_is_not_ip_has_a_key() {
    let arp = |src: u8, dst: u8| {
        let mut frame = vec![dst; 6];
        frame.extend([src; 6]);
        frame.extend([8, 6]);
        frame.extend([0; 28]);
        DirectedKey::of(&parse(LinkType::ETHERNET, &frame), false).unwrap()
    };
    assert_eq!(arp(1, 2).key, arp(2, 1).key);
    assert_ne!(arp(1, 2).is_reverse, arp(2, 1).is_reverse);
    assert_eq!(arp(1, 2).key.family(), AddressKind::Mac);
    assert_eq!(arp(1, 2).key.endpoints(), None);
}

#[test]
fn hashes_spread_whatever_the_keys_have_in_common() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20 {
        let words: [u64; 14] = array::from_fn(|_| random.u64(..));
        let secret = Secret::from_words(|n| words[n]);
        for bits in [0, 16, 32, 52] {
            let mut counts = vec![0; 4096];
            let mut all = HashSet::new();
            for n in 0..16 * 4096_u32 {
                let key = BiflowKey {
                    addresses: [[1; 16], (u128::from(n) << 7).to_be_bytes()],
                    ports: [u16::try_from(n % 65_536).unwrap(), 80],
                    ..BiflowKey::default()
                };
                let hash = secret.hash(&key);
                counts[usize::try_from(hash << (52 - bits) >> 52).unwrap()] += 1;
                all.insert(hash);
            }
            assert_eq!(all.len(), 16 * 4096);
            let most = counts.iter().max().unwrap();
            assert!(*most < 64, "{most} of 16 on average at bit {bits}");
        }
    }
}

#[test]
fn secrets_differ() {
    let key = BiflowKey::default();
    assert_ne!(Secret::random().hash(&key), Secret::random().hash(&key));
}
