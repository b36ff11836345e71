//! Compilation: places of errors, empty expressions, filters for savefiles and for live interfaces,
//! and unusual texts.

use retroscope_filter::{
    Aux, FilterError, FilterMode, FilterProblem, LinkContext, Program, Template, compile,
};
use retroscope_packet::{Direction, LinkType};

const ETHERNET: LinkContext = LinkContext {
    link_type: LinkType::ETHERNET,
    snaplen: 0,
    mode: FilterMode::Savefile,
    optimize: true,
};
const LIVE: LinkContext = LinkContext {
    mode: FilterMode::Live,
    ..ETHERNET
};

fn error(expr: &str, link: LinkContext) -> FilterError {
    compile(expr, link).expect_err(expr)
}

fn program(expr: &str, link: LinkContext) -> Program {
    compile(expr, link).unwrap_or_else(|error| panic!("{}", error.render()))
}

#[test]
fn errors_show_the_word() {
    let cases = [
        (
            "tcp port 80 an host 1.2.3.4",
            "filter: syntax error\n  tcp port 80 an host 1.2.3.4\n              ^^",
        ),
        ("tcp and ", "filter: syntax error\n  tcp and\n         ^"),
        ("(tcp", "filter: syntax error\n  (tcp\n      ^"),
        (
            "host ä an b",
            "filter: syntax error\n  host ä an b\n       ^",
        ),
        (
            "port 80 or port 70000 or tcp",
            "filter: illegal port number 70000 > 65535\n  port 80 or port 70000 or tcp\n                  ^^^^^",
        ),
        (
            "net 10.0.0.1/8 or tcp",
            "filter: non-network bits set in \"10.0.0.1/8\"\n  net 10.0.0.1/8 or tcp\n      ^^^^^^^^^^",
        ),
        (
            "tcp or inbound or udp",
            "filter: inbound/outbound not supported on Ethernet when reading savefiles\n  tcp or inbound or udp\n         ^^^^^^^",
        ),
        (
            "tcp\n\tand udp udp\nor arp",
            "filter: syntax error\n   and udp udp\n           ^^^",
        ),
        ("tcp\0udp", "filter: syntax error\n  tcp udp\n     ^"),
        (
            "ip[0:3] = 1",
            "filter: data size must be 1, 2, or 4\n  ip[0:3] = 1\n       ^",
        ),
        (
            "ip proto 6 and ip proto foo",
            "filter: unknown ip proto 'foo'\n  ip proto 6 and ip proto foo\n                          ^^^",
        ),
    ];
    for (expr, rendered) in cases {
        assert_eq!(error(expr, ETHERNET).render(), rendered);
    }
    let raw = LinkContext {
        link_type: LinkType::RAW,
        ..ETHERNET
    };
    assert_eq!(
        error("tcp and vlan and udp", raw).render(),
        "filter: no VLAN support for Raw IP\n  tcp and vlan and udp\n          ^^^^"
    );
}

#[test]
fn places_are_found_in_long_expressions() {
    for words in [10, 300, 2_000] {
        let expr = format!(
            "{}tcp prot 80 or {}udp",
            "host 10.0.0.1 or ".repeat(words),
            "port 80 or ".repeat(words)
        );
        let error = error(&expr, ETHERNET);
        assert_eq!(&expr[error.span()], "prot", "{}", error.render());
        let line = error
            .render()
            .lines()
            .nth(1)
            .expect("the text")
            .chars()
            .count();
        assert!(line < 120, "a line of {line} characters");
    }
}

#[test]
fn an_empty_expression_takes_everything_on_any_link_type() {
    for number in [0, 1, 101, 239, 276, 60_000, 65_535] {
        for mode in [FilterMode::Savefile, FilterMode::Live] {
            let link = LinkContext {
                link_type: LinkType(number),
                snaplen: 96,
                mode,
                optimize: true,
            };
            for text in ["", " \t\n "] {
                assert_eq!(
                    program(text, link).run(&[], 0, Aux::default()),
                    96,
                    "link type {number}"
                );
            }
        }
    }
    assert_eq!(program("", ETHERNET).run(&[], 0, Aux::default()), 262_144);
    assert_eq!(
        program("ip or not ip", ETHERNET).run(&[0; 60], 60, Aux::default()),
        262_144
    );
    let nflog = LinkContext {
        link_type: LinkType(239),
        ..ETHERNET
    };
    assert!(matches!(
        error("ip", nflog).problem(),
        FilterProblem::Refused(_)
    ));
}

#[test]
fn what_matches_nothing_is_no_error() {
    for expr in [
        "tcp and udp and ip6 and arp",
        "1 = 2",
        "port 80 and not port 80 and arp",
    ] {
        assert_eq!(
            program(expr, ETHERNET).run(&[0; 60], 60, Aux::default()),
            0,
            "{expr}"
        );
    }
}

#[test]
fn live_filters_ask_for_direction_and_interface() {
    let run = |expr: &str, aux: Aux| program(expr, LIVE).run(&[0; 60], 60, aux) != 0;
    let way = |direction: Direction| Aux {
        direction,
        ifindex: Some(7),
    };
    for expr in ["inbound", "outbound"] {
        assert_eq!(run(expr, way(Direction::Inbound)), expr == "inbound");
        assert_eq!(run(expr, way(Direction::Outbound)), expr == "outbound");
        assert!(!run(expr, way(Direction::Unknown)), "{expr}");
        assert!(matches!(
            error(expr, ETHERNET).problem(),
            FilterProblem::Refused(_)
        ));
    }
    assert!(run("ifindex 7", way(Direction::Unknown)));
    assert!(!run("ifindex 8", way(Direction::Unknown)));
    assert!(!run("ifindex 7", Aux::default()) && !run("not ifindex 7", Aux::default()));
    assert!(matches!(
        error("ifindex 7", ETHERNET).problem(),
        FilterProblem::Refused(_)
    ));
    assert!(matches!(
        error("ip broadcast", LIVE).problem(),
        FilterProblem::Refused(_)
    ));
    program("ip broadcast", ETHERNET);
    // For a live socket the kernel answers this load of the VLAN tag (`SKF_AD_VLAN_TAG`). A
    // recorded packet has no answer, so the compiler refuses the load.
    assert!(matches!(
        error("ether[0xfffff02c:2] = 5", LIVE).problem(),
        FilterProblem::Program(_)
    ));
}

#[test]
fn many_threads_compile_at_once() {
    let expressions = [
        "tcp port 80",
        "port http or port domain",
        "ip proto \\tcp",
        "port 70000",
        "tcp an udp",
        "vlan 5",
    ];
    let compile_all =
        || expressions.map(|expr| compile(expr, ETHERNET).map_err(|error| error.render()));
    let expected = compile_all();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(compile_all(), expected);
                }
            });
        }
    });
}

/// Words for random texts. None of the texts makes the compiler look up a name.
const VOCABULARY: [&str; 40] = [
    "tcp", "udp", "ip", "ip6", "vlan", "mpls", "host", "net", "port", "src", "dst", "and", "or",
    "not", "(", ")", "[", "]", "1.2.3.4", "fe80::1", "80", "70000", "-", "&", "<<", "=", "!",
    "$flow", "$iface", "$srcIP", "$proto", "$", "$1f", "ä", "€", "proto", ":", "/", "\n", "len",
];

#[test]
fn any_words_give_an_answer_and_a_place() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut compiled, mut refused) = (0, 0);
    for _ in 0..4_000 {
        let count = random.usize(1..9);
        let words = (0..count).map(|_| VOCABULARY[random.usize(..VOCABULARY.len())]);
        let text = words.collect::<Vec<_>>().join(" ");
        let checked = Template::parse(&text).and_then(|template| template.check(ETHERNET));
        for result in [checked, compile(&text, ETHERNET).map(drop)] {
            match result {
                Ok(()) => compiled += 1,
                Err(error) => {
                    refused += 1;
                    let span = error.span();
                    assert!(text.get(span).is_some(), "seed {seed}: {text:?}: {error:?}");
                    assert!(
                        error.render().starts_with("filter: "),
                        "seed {seed}: {text:?}"
                    );
                }
            }
        }
    }
    assert!(
        compiled > 20 && refused > 1_000,
        "seed {seed}: {compiled} compiled, {refused} refused"
    );
}
