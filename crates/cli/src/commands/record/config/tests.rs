use std::{fs, path::PathBuf};

use super::*;

/// A file of this text, put together with a command line.
fn load(text: &str, command_line: &[&str]) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    fs::write(&path, text).unwrap();
    let command_line: Vec<OsString> = command_line.iter().map(OsString::from).collect();
    let loaded = Loaded::new(&path, &command_line).and_then(|loaded| {
        loaded.check(Depth::Start)?;
        Ok(loaded)
    });
    let shown = format!("{}:", path.display());
    loaded.map_err(|refused| refused.text().replace(&shown, "f:"))
}

/// What arguments come to, but for the file itself.
fn shown(mut args: Args) -> String {
    args.config = None;
    format!("{args:#?}")
}

fn of_command_line(command_line: &[&str]) -> String {
    let matches = command().try_get_matches_from(command_line).unwrap();
    shown(Args::from_arg_matches(&matches).unwrap())
}

const LO: &str = "interface = 'generate:flows=1,rate=1kpps'\n";
const INTERFACE: &str = "-igenerate:flows=1,rate=1kpps";

#[test]
fn a_file_is_what_its_keys_are_as_options() {
    let text = r#"
        interface = ["generate:flows=1,rate=1kpps", "generate:flows=2,rate=1kpps"]
        ring = "64MiB"
        snaplen = 0x60
        past = 2.5
        future = 1_0
        trigger = ["udp port 53", 'host 192.0.2.1']
        trigger-dump = "1=host $srcIP"
        dump = ""
        ted = true
        single = true
        ring-memfd = false
        quiet = true
        cutoff = ["tcp port 443=20KiB", "1MiB/5m"]
        dumps-per-minute = 7
        format = "pcap"
        when-full = "protect"
    "#;
    let options = [
        "--interface=generate:flows=1,rate=1kpps",
        "-igenerate:flows=2,rate=1kpps",
        "--ring=64MiB",
        "--snaplen=96",
        "--past=2.5",
        "--future=10",
        "--trigger=udp port 53",
        "-thost 192.0.2.1",
        "--trigger-dump=1=host $srcIP",
        "--dump=",
        "--ted",
        "--single",
        "--quiet",
        "--cutoff=tcp port 443=20KiB",
        "--cutoff=1MiB/5m",
        "--dumps-per-minute=7",
        "--format=pcap",
        "--when-full=protect",
    ];
    let loaded = load(text, &[]).unwrap();
    assert_eq!(shown(loaded.args), of_command_line(&options));
    // What is about HTTP may have a table.
    let text = format!("{LO}[api]\nlisten = ['unix:a', 'unix:b']\nhost = 'x.example'\n");
    let options = [
        INTERFACE,
        "--api=unix:a",
        "--api=unix:b",
        "--api-host=x.example",
    ];
    let loaded = load(&text, &[]).unwrap();
    assert_eq!(shown(loaded.args), of_command_line(&options));
    // FlowScope's names are keys too.
    let loaded = load(
        "device = 'generate:flows=1,rate=1kpps'\ndump-past = '3s'\npath = '.'\n",
        &[],
    )
    .unwrap();
    let options = [INTERFACE, "--dump-past=3s", "--path=."];
    assert_eq!(shown(loaded.args), of_command_line(&options));
}

#[test]
fn the_command_line_wins() {
    for (file, options, expected) in [
        ("past = '3s'", &["--past=4s"][..], &["--past=4s"][..]),
        ("dump-past = '3s'", &["--past=4s"], &["--past=4s"]),
        // A list is one thing.
        ("trigger = ['tcp', 'udp']", &["-t", "icmp"], &["-t", "icmp"]),
        // What cannot stand beside it goes, too.
        ("dump-lua = 'x.lua'", &["--dump=udp"], &["--dump=udp"]),
        ("ring-memfd = true", &["--ring-file=x"], &["--ring-file=x"]),
        ("ring-file = 'x'", &["--ring-memfd"], &["--ring-memfd"]),
        ("filter = 'udp'", &["-F/dev/null"], &["-F/dev/null"]),
        ("ted = true", &["--ted=32"], &["--ted=32"]),
        ("single = true", &[], &["--single"]),
        // What one lacks may be in the other.
        (
            "eve = 'x'\neve-rotate = '1MiB'",
            &["--eve-keep=3"],
            &["--eve=x", "--eve-rotate=1MiB", "--eve-keep=3"],
        ),
    ] {
        let loaded = load(&format!("{LO}{file}"), options).unwrap();
        let all: Vec<_> = [INTERFACE].iter().chain(expected).copied().collect();
        assert_eq!(shown(loaded.args), of_command_line(&all), "{file}");
    }
    // The rules of a file are tried on a capture.
    let rules = "interface = 'eth0'\n[[rule]]\nname = 'a'\nfilter = 'udp'\n";
    let loaded = load(rules, &["-r", "-"]).unwrap();
    assert!(loaded.args.input.interfaces.is_empty());
    assert_eq!(loaded.args.rules.len(), 1);
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let faults = [
        ("ring = ", "f:2:8: "),
        ("ring = '4GiB'\nring = '5GiB'", "f:3:1: duplicate key"),
        (
            "rign = '4GiB'",
            "f:2:1: there is no key \"rign\"; did you mean 'ring'?",
        ),
        (
            "hold_off = 1",
            "f:2:1: there is no key \"hold_off\"; did you mean 'hold-off'?",
        ),
        (
            "\"\\u001b[2J\" = 1",
            "f:2:1: there is no key \"\\u{1b}[2J\"",
        ),
        ("'' = 1", "f:2:1: there is no key \"\""),
        ("config = 'x'", "f:2:1: 'config' is for the command line"),
        (
            "list-interfaces = true",
            "f:2:1: 'list-interfaces' is for the command line",
        ),
        ("help = true", "f:2:1: there is no key \"help\""),
        (
            "expression = 'udp'",
            "f:2:1: there is no key \"expression\"",
        ),
        (
            "past = '1s'\ndump-past = '1s'",
            "f:3:1: 'past' is there already, by another of its names",
        ),
        ("ring = 4", "f:2:8: ring: \"4\" has no unit: say 4GiB"),
        ("ring = '4XiB'", "f:2:8: ring: \"4XiB\" is not a size"),
        ("past = -5", "f:2:8: past: \"-5\" is not a duration"),
        (
            "past = true",
            "f:2:8: past: it takes a value, neither true nor false",
        ),
        (
            "past = ['1s']",
            "f:2:8: past: it takes one value here, and no list",
        ),
        ("past = {}", "f:2:1: there is no table \"past\""),
        (
            "past = 2026-11-26",
            "f:2:8: past: a date or time has to stand in quotes",
        ),
        ("single = 'yes'", "f:2:10: single: it is true or false"),
        (
            "trigger = [['udp']]",
            "f:2:12: trigger: it takes one value here, and no list",
        ),
        ("trigger = [1979-05-27]", "f:2:12: trigger: a date"),
        ("snaplen = 99999999999999999999", "f:2:11: snaplen: "),
        ("max-dumps = 0", "f:2:13: max-dumps: "),
        ("format = 'pcapn'", "f:2:10: format: invalid value 'pcapn'"),
        (
            "analyzers = 'some'",
            "f:2:13: analyzers: it is 'inline', 'auto'",
        ),
        (
            "dump = ''\ndump-lua = 'x'",
            "f:2:1: the argument '--dump <TEMPLATE>' cannot",
        ),
        (
            "eve = 'x'\neve-keep = 2",
            "the following required arguments were not provided: --eve-rotate",
        ),
        ("eve-rotate = '1MiB'", "f:2:14: --eve-rotate is about flows"),
        ("history-goal = '1ms'", "f:2:16: --history-goal: 1s to 24h"),
        (
            "trigger-into = '1=x'",
            "f:2:16: --trigger-into 1=x: the last trigger is number 0",
        ),
        (
            "cutoff = ['1KiB', 'udp=2KiB']",
            "f:2:11: --cutoff: one without an expression takes all flows",
        ),
        (
            "[api]\npast = 1",
            "f:3:1: there is no key \"past\" in [api]; there are host, listen, metrics, tls-cert",
        ),
        ("api = 'unix:x'\n[api]\nlisten = 'unix:y'", "duplicate key"),
        (
            "tokens = 'x'\n[api]\nlisten = 'unix:y'\ntokens = 'y'",
            "f:5:1: 'tokens' is there already",
        ),
        ("[past]", "f:2:2: there is no table \"past\""),
        (
            "relinquish-privileges = 'nobody-such'",
            "f:2:25: relinquish-privileges: -Z nobody-such",
        ),
        (
            "trigger-lua = ['/nowhere/x.lua']",
            "f:2:16: trigger-lua: cannot read /nowhere/x.lua",
        ),
        (
            "trigger = ['udp', 'udp prot 7']",
            "f:2:19: trigger: syntax error",
        ),
        ("filter = 'tcp port'", "f:2:10: filter: syntax error"),
        (
            "filter = 'host $srcIP'",
            "f:2:10: filter: $srcIP needs a trigger packet",
        ),
        ("dump = 'host $src'", "f:2:8: dump: unknown variable $src"),
        (
            "cutoff = ['udp prot 7=1KiB']",
            "f:2:11: cutoff: syntax error",
        ),
        ("[tables]\na = 1", "f:2:2: there is no table \"tables\""),
        ("[rule]\nname = 'a'", "f:2:1: rules stand in [[rule]]"),
        ("rule = 3", "f:2:8: rules stand in [[rule]]"),
        ("rule = [3]", "f:2:9: a rule is a table"),
        (
            "[[rule]]\nname = 'a'",
            "f:2:1: rule 'a' needs one of the keys filter, lua and module, or alert-dump",
        ),
        (
            "[[rule]]\nname = 'a'\nfilter = 'udp'\nlua = 'x'",
            "f:2:1: rule 'a' needs one of the keys filter, lua and module, or alert-dump",
        ),
        ("[[rule]]\nfilter = 'udp'", "f:2:1: a rule needs a name"),
        (
            "[[rule]]\nname = ''\nfilter = 'udp'",
            "f:3:8: name: a name has 1 to 64 bytes",
        ),
        (
            "[[rule]]\nname = 'a'\nfilter = 'udp'\npats = 1",
            "f:5:1: there is no key \"pats\"; did you mean 'past'?",
        ),
        (
            "[[rule]]\nname = 'a'\nfilter = 'udp'\npast = 'x'",
            "f:5:8: past: \"x\" is not a duration",
        ),
        (
            "[[rule]]\nname = 'a'\nfilter = 'udp'\ninto = '../x'",
            "f:5:8: into: ",
        ),
        (
            "[[rule]]\nname = 'a'\nfilter = 'udp prot'",
            "f:4:10: rule 'a': syntax error",
        ),
        (
            "[[rule]]\nname = 'a'\nfilter = 'udp'\ndump = '$x'",
            "f:5:8: dump of rule 'a': unknown variable",
        ),
        (
            "[[rule]]\nname = 'a'\nalert-dump = 'host {x} or {y}'",
            "f:4:14: alert-dump of rule 'a': before {y} stands `host`",
        ),
        (
            "[[rule]]\nname = 'a'\nalert-dump = 'portt {x} or port {x}'",
            "f:4:14: alert-dump of rule 'a': ",
        ),
        (
            "[[rule]]\nname = 'a'\nfilter = 'udp'\n[[rule]]\nname = 'a'\nfilter = 'tcp'",
            "f:6:8: name: there is a rule 'a' in line 3 already",
        ),
        (
            "trigger = 'tcp'\n[[rule]]\nname = '1'\nfilter = 'udp'",
            "f:4:8: name: '1' is what trigger 1 of the options is called",
        ),
    ];
    for (text, expected) in faults {
        let Err(told) = load(&format!("{LO}{text}"), &[]) else {
            panic!("{text} is taken");
        };
        assert!(
            told.contains(expected),
            "{text}:\n{told}\nand not {expected}"
        );
    }
    // Whether there is a fitting engine is seen where an interface has one.
    let told = load("interface = 'lo'\nbusy-poll = 10", &[]).unwrap_err();
    assert!(told.contains("f:2:13: --busy-poll is for"), "{told}");
    // The picture of an expression's place is the filter's own.
    let told = load(&format!("{LO}filter = 'udp prot 7'"), &[]).unwrap_err();
    assert!(told.ends_with("\n  udp prot 7\n      ^^^^"), "{told}");
    // All of it at once, in the order of the file.
    let told = load(
        "past = 'x'\nfuture = 'y'\n[[rule]]\nname = 3\n[[rule]]\nfilter = true\n",
        &[],
    );
    let told = told.unwrap_err();
    let places = ["f:1:8: ", "f:2:10: ", "f:3:1: ", "f:6:10: "];
    let found: Vec<_> = places.iter().map(|place| told.find(place)).collect();
    assert!(found.is_sorted() && found[0].is_some(), "{told}");
    // And where it is too much, not all of it.
    let many: String = (0..5000).map(|n| format!("k{n} = 1\n")).collect();
    let told = load(&many, &[]).unwrap_err();
    assert!(
        told.ends_with("4900 errors more"),
        "{}",
        &told[told.len() - 100..]
    );
}

#[test]
fn what_is_no_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    let refused = |path: &Path| Loaded::new(path, &[]).unwrap_err().text();
    fs::write(&path, b"past = '1s'\ndump = '\xffx'\n").unwrap();
    assert!(refused(&path).contains("f:2:9: the byte 0xff is no UTF-8 text"));
    // A file without an end, and one that is only long.
    for special in ["/dev/zero", "/dev/null", "/proc/self"] {
        let why = refused(Path::new(special));
        assert!(why.contains("no regular file"), "{why}");
    }
    fs::write(&path, "#".repeat(9 << 20)).unwrap();
    assert!(refused(&path).contains("more than 8 MiB"));
    let deep = format!("past = {}", "[".repeat(100_000));
    fs::write(&path, deep).unwrap();
    refused(&path);
    fs::remove_file(&path).unwrap();
    assert!(refused(&path).contains("cannot read"));
    // Nobody writes a pipe: it is not waited for.
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    assert!(refused(&path).contains("no regular file"));
}

#[test]
fn thousands_of_rules_are_read() {
    let rules = (0..3000).map(|n| {
        format!("[[rule]]\nname = 'r{n}'\nfilter = 'udp port {n}'\npast = '1s'\nmax-dumps = 3\n")
    });
    let loaded = load(&(LO.to_owned() + &rules.collect::<String>()), &[]).unwrap();
    assert_eq!(loaded.args.rules.len(), 3000);
    let (config, _) = loaded.args.resolve().unwrap();
    assert_eq!(config.names[2999], "r2999");
    assert_eq!(config.requests[2999].max_dumps, Some(3));
}

/// Triggers of options have the places of before, whatever rules there are between them.
#[test]
fn rules_stand_behind_the_triggers_of_their_kind() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("s.lua");
    fs::write(&script, "return function(pkt) return false end").unwrap();
    let script = script.display();
    let text = format!(
        "{LO}trigger = ['tcp']\ntrigger-lua = ['{script}']\ntrigger-dump = '2=udp'\n\
         [[rule]]\nname = 'l'\nlua = '{script}'\n[[rule]]\nname = 'f'\nfilter = 'icmp'\npast = '1s'\n"
    );
    let loaded = load(&text, &[]).unwrap();
    loaded.check_only().unwrap();
    let (config, _) = loaded.args.resolve().unwrap();
    assert_eq!(config.triggers, ["tcp", "icmp"]);
    assert_eq!(config.names, ["1", "f", "2", "l"]);
    let dumps: Vec<_> = config
        .requests
        .iter()
        .map(|it| it.dump.as_deref())
        .collect();
    assert_eq!(dumps, [None, None, Some("udp"), None]);
    assert!(config.requests[1].past.is_some() && config.requests[3].past.is_none());
    // A script that does not load.
    fs::write(folder.path().join("s.lua"), "return 3").unwrap();
    let why = load(&text, &[]).unwrap().check_only().unwrap_err().text();
    assert!(why.contains(":3:16: "), "{why}");
}

/// The options that the example leaves out.
const NOT_IN_THE_EXAMPLE: [&str; 1] = ["size"];

#[test]
fn the_example_has_every_key() {
    let path = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../examples/retroscope.toml"
    ));
    let text = fs::read_to_string(path).unwrap();
    // As it stands it is right.
    let loaded = load(&text, &[]).unwrap();
    assert_eq!(loaded.args.rules.len(), 3);
    // With what it shows of all else, each key by itself.
    let all = text.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') => key,
        _ => line,
    });
    let all = all.collect::<Vec<_>>().join("\n");
    let table = DeTable::parse(&all).unwrap();
    let mut faults = Vec::new();
    let mut command = command();
    let text = ConfigText::of(&all);
    let (entries, rules) = entries_and_rules(&text, table.get_ref(), &mut faults);
    let settings = keys::read(&mut command, entries, &mut faults);
    assert_eq!(faults, []);
    let shown: BTreeSet<&str> = settings.iter().map(|it| it.key.as_str()).collect();
    let options = command.get_arguments().filter_map(|arg| arg.get_long());
    let options: BTreeSet<&str> = options
        .filter(|it| is_of_files(it) && !NOT_IN_THE_EXAMPLE.contains(it))
        .collect();
    assert_eq!(shown, options);
    let of_rules = rules.iter().flat_map(FileRule::keys);
    let of_rules: BTreeSet<&str> = of_rules.collect();
    assert_eq!(
        of_rules,
        rules::key_names().iter().map(String::as_str).collect()
    );
    // What is marked so can be read again, and nothing else.
    for option in reload::RELOADED {
        assert!(options.contains(option), "{option}");
    }
}

#[test]
fn documented_files_have_no_wrong_key() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let packaged = root.join("contrib/debian/retroscope.toml");
    let mut files = vec![fs::read_to_string(packaged).unwrap()];
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let page = entry.unwrap().path();
        if page.extension().is_some_and(|it| it == "md") {
            let page = fs::read_to_string(page).unwrap();
            let blocks = page.split("```toml\n").skip(1);
            files.extend(blocks.map(|it| it.split("```").next().unwrap().to_owned()));
        }
    }
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        // A block of a page may name no source.
        let loaded = load(&file, &[INTERFACE]);
        assert!(loaded.is_ok(), "{file}: {loaded:?}");
    }
}
