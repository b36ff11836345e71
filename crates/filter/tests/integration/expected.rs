//! Tables of expected results: which expressions compile, and how many packets of captures match.
//! The tests check every row.

use std::collections::BTreeMap;

use crate::common::{Capture, rows, savefile, shared};
use retroscope_filter::{
    Aux, Filter, FilterError, FilterFrame, PacketView, Program, Template, compile,
};
use retroscope_packet::LinkType;

/// Names of link types in `filters.tsv`, and their `LINKTYPE_` values.
const LINK_TYPES: [(&str, u16); 39] = [
    ("EN10MB", 1),
    ("RAW", 101),
    ("IEEE802_11", 105),
    ("MTP2", 140),
    ("IPV4", 228),
    ("FDDI", 10),
    ("PFLOG", 117),
    ("LINUX_SLL2", 276),
    ("LINUX_SLL", 113),
    ("IEEE802_11_RADIO", 127),
    ("ARCNET", 7),
    ("DSA_TAG_BRCM", 281),
    ("IP_OVER_FC", 122),
    ("PPP", 9),
    ("DSA_TAG_DSA", 284),
    ("SUNATM", 123),
    ("IEEE802", 6),
    ("LOOP", 108),
    ("C_HDLC", 104),
    ("PPI", 192),
    ("NULL", 0),
    ("PRISM_HEADER", 119),
    ("IPV6", 229),
    ("IEEE802_11_RADIO_AVS", 163),
    ("FRELAY", 107),
    ("ARCNET_LINUX", 129),
    ("NFLOG", 239),
    ("IPNET", 226),
    ("SLIP", 8),
    ("IPOIB", 242),
    ("APPLE_IP_OVER_IEEE1394", 138),
    ("LTALK", 114),
    ("IEEE802_15_4_WITHFCS", 195),
    ("CAN_SOCKETCAN", 227),
    ("PPP_SERIAL", 50),
    ("PPP_ETHER", 51),
    ("IEEE802_15_4_NOFCS", 230),
    ("MFR", 182),
    ("USB_LINUX", 189),
];

/// Counts the matching packets, with a program for each link type. Returns an error if the
/// expression compiles for no interface. The interpreter, machine code and machine code that
/// filters many packets in a loop must agree on each packet.
fn count(capture: &Capture, expr: &str) -> Result<usize, FilterError> {
    let mut filter = Filter::new(Template::parse(expr)?.into_plain()?);
    let mut first_error = None;
    let mut compiled = capture.links.is_empty();
    for link in &capture.links {
        match filter.prepare(*link) {
            Ok(()) => compiled = true,
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    if let (false, Some(error)) = (compiled, first_error) {
        return Err(error);
    }
    let packets = &capture.packets;
    let interpreted: Vec<bool> = packets
        .iter()
        .map(|packet| matches(&filter, capture, packet))
        .collect();
    let programs: Vec<Option<&Program>> = capture
        .links
        .iter()
        .map(|link| filter.program(link.link_type, link.mode))
        .collect();
    for program in programs.iter().flatten() {
        program
            .make_native()
            .unwrap_or_else(|error| panic!("{expr}: {error}"));
    }
    for (index, packet) in packets.iter().enumerate() {
        let is_match = matches(&filter, capture, packet);
        assert_eq!(is_match, interpreted[index], "{expr}, packet {index}");
    }
    for run in packets.chunk_by(|a, b| a.interface == b.interface) {
        let Some(program) = programs[run[0].interface] else {
            continue;
        };
        for packets in run.chunks(Program::MANY) {
            let frames: Vec<FilterFrame<'_>> = packets
                .iter()
                .map(|packet| FilterFrame::new(&packet.data, packet.wire_len, Aux::default()))
                .collect();
            let kept = program.run_many(&frames);
            for (index, packet) in packets.iter().enumerate() {
                let is_match = matches(&filter, capture, packet);
                assert_eq!(kept >> index & 1 == 1, is_match, "{expr}, in the loop");
            }
        }
    }
    Ok(interpreted.iter().filter(|is_match| **is_match).count())
}

fn matches(filter: &Filter, capture: &Capture, packet: &crate::common::Packet) -> bool {
    let link = capture.links[packet.interface];
    filter.matches(&PacketView {
        link_type: link.link_type,
        mode: link.mode,
        interface: 0,
        aux: Aux::default(),
        data: &packet.data,
        wire_len: packet.wire_len,
    })
}

#[test]
fn every_row_of_filters_expected_agrees() {
    let (Some(table), Some(root)) = (shared("filters-expected.tsv"), shared("")) else {
        return;
    };
    let mut by_trace: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut seen = 0;
    for row in rows(&table) {
        let [trace, filter, matches] = row.try_into().expect("three columns");
        by_trace.entry(trace).or_default().push((filter, matches));
        seen += 1;
    }
    let mut wrong = Vec::new();
    for (trace, filters) in by_trace {
        let capture =
            Capture::read(&root.join(&trace)).unwrap_or_else(|| panic!("{trace} cannot be read"));
        for (filter, expected) in filters {
            let agrees = match (count(&capture, &filter), expected.as_str()) {
                (Err(_), "error") => Ok(()),
                (Ok(0), "rejects-all") => Ok(()),
                (Ok(matches), number) if number.parse() == Ok(matches) => Ok(()),
                (got, _) => Err(got),
            };
            if let Err(got) = agrees {
                wrong.push(format!(
                    "{trace}\t{filter}\texpected {expected}, got {got:?}"
                ));
            }
        }
    }
    assert!(seen > 6000, "the table has {seen} rows");
    assert!(
        wrong.is_empty(),
        "{} of {seen} rows disagree:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn every_row_of_filters_compiles_or_not() {
    let Some(table) = shared("filters.tsv") else {
        return;
    };
    let link_types = BTreeMap::from(LINK_TYPES);
    let mut wrong = Vec::new();
    let rows = rows(&table);
    for row in &rows {
        let [id, link_type, expect, _, filter, message] = row.as_slice() else {
            panic!("six columns: {row:?}")
        };
        let number = *link_types
            .get(link_type.as_str())
            .unwrap_or_else(|| panic!("{id}: link type {link_type}"));
        let result = compile(filter, savefile(LinkType(number), 262_144));
        let agrees = match (&result, expect.as_str()) {
            (_, "either") | (Ok(_), "ok") => true,
            (Ok(program), "rejects-all") => program.run(&[0; 64], 64, Aux::default()) == 0,
            (Err(error), "error") => {
                let message = message
                    .strip_prefix("can't parse filter expression: ")
                    .unwrap_or(message);
                error.to_string() == message && error.span().end <= filter.len()
            }
            _ => false,
        };
        if !agrees {
            wrong.push(format!(
                "{id}\t{link_type}\t{filter}\texpected {expect} {message:?}, got {result:?}"
            ));
        }
    }
    assert!(rows.len() > 2000, "the table has {} rows", rows.len());
    assert!(
        wrong.is_empty(),
        "{} rows disagree:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
