//! Long expressions: cut into parts that libpcap compiles quickly, and linked again.
//!
//! libpcap takes a minute for a list of a thousand or-ed hosts, but 10 µs a host for lists of
//! seven.
//!
//! After a part with "no match" the program continues with the next part that `or` joins; after a
//! match, with the next part that `and` joins. A load beyond the captured bytes rejects the packet
//! in any part.
//!
//! An expression with `vlan`, `mpls`, `pppoed`, `pppoes` or `geneve` stays whole: all of these
//! except `pppoed` change the meaning of later primitives. No part begins with a primitive that
//! takes its qualifiers from the previous primitive.

use std::ops::Range;

use retroscope_bpf::{Instruction, op};

use crate::{
    FilterError,
    structure::{Clause, Joiner, Structure},
    words::{WordKind, words},
};

/// Target length of a part in bytes. With 512, lists of hosts or ports take five times as long to
/// compile and give 30 % fewer instructions.
const PART_BYTES: usize = 128;
/// Words that begin a primitive with its own qualifiers. A clause that begins with another word
/// begins no part, except the first part of a list.
const FRESH: [&str; 21] = [
    "host",
    "net",
    "port",
    "portrange",
    "src",
    "dst",
    "ether",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "icmp6",
    "igmp",
    "proto",
    "len",
    "less",
    "greater",
];

/// The parts of an expression, each with the joiner to everything on its left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExpressionParts(Vec<(Joiner, ExpressionPart)>);

#[derive(Debug, PartialEq, Eq)]
enum ExpressionPart {
    Text(Range<usize>),
    Group {
        negated: bool,
        parts: ExpressionParts,
    },
}

impl ExpressionParts {
    /// Cuts an expression. `None` if the expression must stay whole or is invalid.
    pub(crate) fn split(text: &str) -> Option<Self> {
        let words = words(text);
        let structure = Structure::parse(text, &words).ok()?;
        if structure.last_shift().is_some() {
            return None;
        }
        let parts = Cutter(&structure).cut(&structure.clauses)?;
        (parts.0.len() > 1 || matches!(parts.0[0].1, ExpressionPart::Group { .. })).then_some(parts)
    }

    /// Compiles each part with `compile` and links the programs.
    ///
    /// # Errors
    /// The first error of `compile`.
    pub(crate) fn compile(
        &self,
        mut compile: impl FnMut(Range<usize>) -> Result<Vec<Instruction>, FilterError>,
    ) -> Result<Vec<Instruction>, FilterError> {
        let mut linker = Linker::default();
        let returns = linker.chain(self, &mut compile)?;
        for index in returns.accepts {
            linker.code[index] = Instruction::ret(linker.accepted);
        }
        for index in returns.rejects {
            linker.code[index] = Instruction::ret(0);
        }
        Ok(linker.code)
    }
}

struct Cutter<'t>(&'t Structure<'t>);

impl Cutter<'_> {
    /// Cuts clauses. `None` if that could change the meaning.
    fn cut(&self, clauses: &[Clause]) -> Option<ExpressionParts> {
        let mut parts = Vec::new();
        for clause in clauses {
            self.push(&mut parts, clause)?;
        }
        Some(ExpressionParts(parts))
    }

    /// Appends a clause to the previous text, or as a separate part. `None` if both could change
    /// the meaning.
    fn push(&self, chain: &mut Vec<(Joiner, ExpressionPart)>, clause: &Clause) -> Option<()> {
        let is_fresh = self.is_fresh(clause);
        let begins = chain.is_empty() || is_fresh;
        let bytes = self.0.bytes(clause.words.clone());
        if is_fresh
            && bytes.len() > PART_BYTES
            && let Some(group) = &clause.group
            && let Some(parts) = self.cut(group)
        {
            let negated = clause.negated;
            chain.push((clause.joiner, ExpressionPart::Group { negated, parts }));
            return Some(());
        }
        let at_start = chain.len() == 1;
        if let Some((opened, ExpressionPart::Text(before))) = chain.last_mut()
            && (at_start || *opened == clause.joiner)
            && (!begins || bytes.end - before.start <= PART_BYTES)
        {
            before.end = bytes.end;
            return Some(());
        }
        begins.then(|| chain.push((clause.joiner, ExpressionPart::Text(bytes))))
    }

    /// Whether the clause certainly has its own qualifiers.
    fn is_fresh(&self, clause: &Clause) -> bool {
        let mut words = clause.words.clone();
        words
            .find(|&at| !matches!(self.0.words[at].kind, WordKind::Not | WordKind::Open))
            .and_then(|at| self.0.word(at))
            .is_some_and(|word| FRESH.contains(&word))
    }
}

/// Concatenates programs. If the chain continues after a return, a jump replaces the return.
#[derive(Default)]
struct Linker {
    code: Vec<Instruction>,
    /// Largest return value for a match.
    accepted: u32,
}

#[derive(Default)]
struct Returns {
    accepts: Vec<usize>,
    rejects: Vec<usize>,
}

impl Linker {
    fn chain(
        &mut self,
        ExpressionParts(parts): &ExpressionParts,
        compile: &mut impl FnMut(Range<usize>) -> Result<Vec<Instruction>, FilterError>,
    ) -> Result<Returns, FilterError> {
        let mut all = Returns::default();
        for (place, (joiner, part)) in parts.iter().enumerate() {
            match joiner {
                _ if place == 0 => {}
                Joiner::And => self.go_on_after(&mut all.accepts),
                Joiner::Or => self.go_on_after(&mut all.rejects),
            }
            let mut its = match part {
                ExpressionPart::Text(bytes) => self.program(&compile(bytes.clone())?),
                ExpressionPart::Group { parts, .. } => self.chain(parts, compile)?,
            };
            if matches!(part, ExpressionPart::Group { negated: true, .. }) {
                std::mem::swap(&mut its.accepts, &mut its.rejects);
            }
            all.accepts.append(&mut its.accepts);
            all.rejects.append(&mut its.rejects);
        }
        Ok(all)
    }

    /// Turns return instructions into jumps to the next instruction that is appended.
    fn go_on_after(&mut self, returns: &mut Vec<usize>) {
        for index in returns.drain(..) {
            let distance = u32::try_from(self.code.len() - index - 1);
            // The text has at most half a MiB, so the distance is far below 2^31.
            let k = distance.unwrap_or(u32::MAX);
            self.code[index] = Instruction::new(op::JA, 0, 0, k);
        }
    }

    fn program(&mut self, program: &[Instruction]) -> Returns {
        let mut returns = Returns::default();
        for instruction in program {
            match (instruction.code, instruction.k) {
                (op::RET_K, 0) => returns.rejects.push(self.code.len()),
                (op::RET_K, bytes) => {
                    self.accepted = self.accepted.max(bytes);
                    returns.accepts.push(self.code.len());
                }
                _ => {}
            }
            self.code.push(*instruction);
        }
        returns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    use crate::{
        Aux, FilterMode, FilterProblem, LinkContext, Program, compile, sys::CompileHandle,
    };
    use retroscope_packet::LinkType;

    const LINK: LinkContext = LinkContext {
        link_type: LinkType::RAW,
        snaplen: 65_535,
        mode: FilterMode::Savefile,
        optimize: true,
    };

    /// An IPv4 UDP packet to 10.0.`net`.1, port `port`.
    fn packet(net: u8, port: u16) -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 10, 0, net, 1, 0, 9,
        ];
        packet.extend(port.to_be_bytes());
        packet.extend([0, 8, 0, 0]);
        packet
    }

    fn list(range: Range<u32>, item: impl Fn(u32) -> String) -> String {
        range.map(item).collect::<Vec<_>>().join(" or ")
    }

    #[test]
    fn long_lists_mean_what_they_say() {
        let hosts = list(0..256, |net| format!("host 10.0.{net}.1"));
        let ports = list(1000..1500, |port| format!("port {port}"));
        assert!(hosts.len() > PART_BYTES * 4);
        let programs = [
            hosts.clone(),
            ports.clone(),
            format!("udp and ({hosts}) and ({ports})"),
            format!("udp and not ({ports}) and ({hosts})"),
            format!("not ({hosts}) or not (tcp or ({ports}))"),
            // Operands group from the left: (hosts or ports) and tcp; (tcp and the first port) or
            // the other ports or the host.
            format!("{hosts} or {ports} and tcp"),
            format!("tcp and {ports} or host 10.0.7.1"),
        ]
        .map(|expr| compile(&expr, LINK).unwrap_or_else(|error| panic!("{}", error.render())));
        for (net, port) in [(0, 1000), (255, 1499), (7, 1250), (7, 999), (7, 1500)] {
            let listed = (1000..1500).contains(&port);
            let packet = packet(net, port);
            let expected = [
                true,
                listed,
                listed,
                !listed,
                !listed,
                false,
                (listed && port != 1000) || net == 7,
            ];
            let matched = programs
                .each_ref()
                .map(|program| program.run(&packet, 28, Aux::default()) != 0);
            assert_eq!(matched, expected, "net {net}, port {port}");
        }
        assert_eq!(programs[0].run(&[0x45; 3], 28, Aux::default()), 0);
    }

    #[test]
    fn random_trees_mean_the_same_in_parts() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut handle = CompileHandle::open(&LINK).expect("libpcap works");
        let mut compared = 0;
        for _ in 0..60 {
            let expr = tree(&mut random, 3);
            let Some(parts) = ExpressionParts::split(&expr) else {
                continue;
            };
            let mut libpcap = |text: &str| {
                let text = CString::new(text).expect("no NUL");
                handle
                    .compile(&text, false)
                    .unwrap_or_else(|error| panic!("seed {seed}: {error}: {text:?}"))
            };
            let whole = Program::new(libpcap(&expr), false).expect("libpcap's programs are valid");
            let linked = parts
                .compile(|bytes| Ok(libpcap(&expr[bytes])))
                .expect("compiled");
            let linked = Program::new(linked, false).expect("linked programs are valid");
            compared += 1;
            for net in 0..8 {
                for port in 1000..1008 {
                    let packet = packet(net, port);
                    let (in_parts, at_once) = (
                        linked.run(&packet, 28, Aux::default()),
                        whole.run(&packet, 28, Aux::default()),
                    );
                    assert_eq!(
                        in_parts != 0,
                        at_once != 0,
                        "seed {seed}, net {net}, port {port}:\n{expr}"
                    );
                }
            }
        }
        assert!(
            compared > 10,
            "seed {seed}: {compared} expressions were compared"
        );
    }

    /// A random expression. Some primitives end with 300 blanks, so that the expression is cut.
    fn tree(random: &mut fastrand::Rng, depth: u32) -> String {
        let count = random.usize(1..9);
        let mut text = String::new();
        for index in 0..count {
            if index > 0 {
                text.push_str(if random.bool() { " and " } else { " or " });
            }
            if random.u8(..4) == 0 {
                text.push_str("not ");
            }
            match random.u8(..5) {
                0 | 1 if depth > 0 => text.push_str(&format!("({})", tree(random, depth - 1))),
                2 => text.push_str(&format!("host 10.0.{}.1", random.u8(..8))),
                3 => text.push_str(&format!(
                    "udp dst port {}{}",
                    random.u16(1000..1008),
                    " ".repeat(300)
                )),
                _ => text.push_str(&format!(
                    "src or dst port {} or {}",
                    random.u16(1000..1008),
                    random.u16(1000..1008)
                )),
            }
        }
        text
    }

    #[test]
    fn what_carries_over_stays_whole() {
        let hosts = list(0..256, |net| format!("host 10.0.{net}.1"));
        assert_eq!(ExpressionParts::split(&format!("vlan and ({hosts})")), None);
        assert_eq!(
            ExpressionParts::split(&format!(
                "host {}",
                list(0..256, |net| format!("10.0.{net}.1"))
            )),
            None
        );
        assert_eq!(ExpressionParts::split("tcp and ("), None);
        assert_eq!(ExpressionParts::split("tcp and and udp"), None);
        let error = compile(&format!("{hosts} or port 70000 or {hosts}"), LINK)
            .expect_err("an illegal port");
        assert_eq!(&error.text()[error.span()], "70000");
        let endless = format!("vlan and ({hosts} or {hosts})");
        let error = compile(&endless, LINK).expect_err("too many");
        assert!(matches!(error.problem(), FilterProblem::TooMany { .. }));
    }
}
