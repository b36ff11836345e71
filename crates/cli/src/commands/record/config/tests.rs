use std::{collections::BTreeSet, fs, path::PathBuf, time::Duration};

use clap::{Args as _, Command, CommandFactory as _, FromArgMatches as _};

use super::*;
use crate::{Cli, commands::removed};

impl Loaded {
    /// Reads a file with this text, and applies `flags`. Messages call the file `f`. Panics if
    /// there is an error.
    fn new_of(text: &str, flags: &[Assignment]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, text).unwrap();
        let mut loaded = Self::new(Some(&path), flags).unwrap();
        loaded.text.rename("f");
        loaded
    }
}

/// Parses a command line of `record` into assignments of keys.
fn flags(command_line: &[&str]) -> Vec<Assignment> {
    let command = RecordFlags::augment_args(Command::new("record").no_binary_name(true));
    let matches = command.try_get_matches_from(command_line).unwrap();
    RecordFlags::from_arg_matches(&matches).unwrap().0
}

/// Reads a file with this text, applies the command line, and checks the result. Errors call the
/// file `f`.
fn load(text: &str, command_line: &[&str]) -> Result<Loaded, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    fs::write(&path, text).unwrap();
    let loaded = Loaded::new(Some(&path), &flags(command_line)).and_then(|loaded| {
        loaded.check(Depth::Start)?;
        Ok(loaded)
    });
    let shown = format!("{}:", path.display());
    loaded.map_err(|refused| refused.text().replace(&shown, "f:"))
}

fn of_command_line(command_line: &[&str]) -> Settings {
    Loaded::new(None, &flags(command_line)).unwrap().settings
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
        dump = ""
        ted = true
        single = true
        ring-memfd = false
        quiet = true
        cutoff = ["tcp port 443=20KiB", "1MiB/5m"]
        dumps-per-minute = 7
        format = "pcap"
        when-full = "protect"
        [api]
        listen = ['unix:a', 'unix:b']
        host = 'x.example'
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
        "--dump=",
        "--set=ted=16",
        "--single",
        "--quiet",
        "--cutoff=tcp port 443=20KiB",
        "--cutoff=1MiB/5m",
        "--set=dumps-per-minute=7",
        "--format=pcap",
        "--set=when-full=protect",
        "--api=unix:a",
        "--api=unix:b",
        "--set=api.host=x.example",
    ];
    let loaded = load(text, &[]).unwrap();
    assert_eq!(loaded.settings, of_command_line(&options));
    // FlowScope's names are options too.
    let options = ["--device=lo", "--dump-past=3s", "--path=x", "--size=2"];
    let plain = ["-ilo", "--past=3s", "-wx", "--ring=2GiB"];
    assert_eq!(of_command_line(&options), of_command_line(&plain));
}

/// The file overrides defaults, options override the file, and later options override earlier
/// options.
#[test]
fn the_command_line_wins() {
    for (file, options, expected) in [
        ("past = '3s'", &["--past=4s"][..], &["--past=4s"][..]),
        ("", &["--past=4s", "--set=past=5s"], &["--past=5s"]),
        ("", &["--set=past=5s", "--past=4s"], &["--past=4s"]),
        // A flag replaces a list of the file and appends to a list of the command line. `--set`
        // replaces either list.
        ("trigger = ['tcp', 'udp']", &["-t", "icmp"], &["-t", "icmp"]),
        (
            "trigger = 'tcp'",
            &["-tip", "--set=trigger=udp", "-ticmp"],
            &["-tudp", "-ticmp"],
        ),
        ("", &["-tip", "--set=trigger=['a', 'b']"], &["-ta", "-tb"]),
        // An option also removes the key of the file that it excludes.
        ("dump-lua = 'x.lua'", &["--dump=udp"], &["--dump=udp"]),
        ("ring-memfd = true", &["--ring-file=x"], &["--ring-file=x"]),
        ("filter = 'udp'", &["-F/dev/null"], &["-F/dev/null"]),
        ("ted = true", &["--set=ted=32"], &["--set=ted=32"]),
        ("ted = true", &["--set=ted=false"], &["--set=ted=false"]),
        ("single = true", &[], &["--single"]),
        ("single = true", &["--set=single=false"], &[]),
        (
            "[api]\nlisten='unix:a'",
            &["--api=unix:b"],
            &["--api=unix:b"],
        ),
    ] {
        let text = format!("{LO}{file}");
        let loaded = Loaded::new_of(&text, &flags(options));
        let all: Vec<_> = [INTERFACE].iter().chain(expected).copied().collect();
        assert_eq!(loaded.settings, of_command_line(&all), "{file} {options:?}");
    }
    // With `-r`, the rules of a file can be tested on a capture: the interface of the file is
    // ignored.
    let rules = "interface = 'eth0'\n[[rule]]\nname = 'a'\nfilter = 'udp'\n";
    let loaded = load(rules, &["-r", "-"]).unwrap();
    assert!(loaded.settings.interface.is_empty());
    assert_eq!(loaded.settings.rule.len(), 1);
    // One rule is changed, and another rule is added.
    let options = ["--set=rule.a.past=3s", "--set=rule.\"b.c\".filter=tcp"];
    let rules = load(rules, &[&options[..], &["-r", "-"]].concat())
        .unwrap()
        .rules();
    let names: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["a", "b.c"]);
    assert_eq!(rules[0].request.past, Some(Duration::from_secs(3)));
    let none = "--set=rule=[]";
    assert_eq!(of_command_line(&[options[0], none]).rule, []);
}

#[test]
fn a_rule_of_the_file_may_be_single() {
    let text = format!("{LO}[[rule]]\nname = 'a'\nfilter = 'udp'\nsingle = true\n");
    let single = |options: &[&str]| {
        Loaded::new_of(&text, &flags(options)).rules()[0]
            .request
            .single
    };
    assert!(single(&[]));
    assert!(!single(&["--set=rule.a.single=false"]));
}

#[test]
fn every_value_is_printed_with_its_origin() {
    let text = format!("{LO}[api]\nlisten = 'unix:a'\n[[rule]]\nname = 'a'\nfilter = 'udp'\n");
    let loaded = Loaded::new_of(&text, &flags(&["--past=4s", "--set=max-dumps=3"]));
    let printed = loaded.printed();
    for line in [
        "interface = \"generate:flows=1,rate=1kpps\" # f:1",
        "past = \"4s\" # --past",
        "max-dumps = 3 # --set max-dumps",
        "future = \"5s\" # default",
        "listen = \"unix:a\" # f:3",
        "rule = [{ filter = \"udp\", name = \"a\" }] # f:4",
        "# 1 capture thread # computed",
        "# dumps-per-minute = 400 # computed",
    ] {
        assert!(printed.lines().any(|it| it == line), "{line}:\n{printed}");
    }
    assert_eq!(Loaded::new_of(&printed, &[]).settings, loaded.settings);
    // The recorder computes values of some keys that are not given, and the number of buckets.
    let computed = |text: &str, key: &str| {
        let printed = Loaded::new_of(&format!("{LO}{text}"), &[]).printed();
        printed
            .lines()
            .any(|it| it.starts_with(key) && it.ends_with("# computed"))
    };
    assert!(computed("", "# ring = \""));
    assert!(computed("ring = '64MiB'", "# 32 buckets of 2 MiB"));
    assert!(
        computed("sha256 = true", "# dumps-per-minute") && !computed("sha256 = true", "# sha256")
    );
    // The printed file has no default that the given keys exclude.
    for (file, options) in [
        ("dump-lua = 'x.lua'", &[][..]),
        ("ring-file = 'x'", &[]),
        ("ring-file = 'x'\nring-memfd = false", &[]),
        ("", &["--ring-file=x", "--set=ring-memfd=false"]),
        ("read = []", &[]),
        ("post = 'true'\npost-at-once = 3", &[]),
    ] {
        let loaded = Loaded::new_of(&format!("{LO}{file}"), &flags(options));
        let again = Loaded::new_of(&loaded.printed(), &[]);
        assert_eq!(again.settings, loaded.settings, "{file} {options:?}");
        assert!(again.refuse_keys_of_post().is_ok(), "{file}");
    }
}

/// In `--set KEY=VALUE`, TOML reads these values as a number, a date or a boolean. If the key
/// accepts only text, the program takes the value as text.
#[test]
fn a_text_needs_no_quotes() {
    for (plain, quoted) in [
        ("cutoff=0", "cutoff='0'"),
        ("post-user=1000", "post-user='1000'"),
        ("name=2024-01-01", "name='2024-01-01'"),
        ("post=true", "post='true'"),
    ] {
        let [plain, quoted] = [plain, quoted].map(|it| of_command_line(&["--set", it]));
        assert_eq!(plain, quoted);
    }
}

#[test]
fn errors_name_the_option_of_a_rule() {
    let rule = format!("{LO}[[rule]]\nname = 'a'\nfilter = 'udp'\n");
    for (text, option, why) in [
        (&rule, "rule.a.filter=udp prot", "rule 'a': syntax error"),
        (&rule, "rule.a.dump=$x", "dump of rule 'a': "),
        (&rule, "rule.a.lua=x", "rule 'a' needs one of the keys"),
        (&LO.to_owned(), "rule.a.past=1s", "rule 'a' needs one of"),
        (&LO.to_owned(), "rule.a.lua=/nowhere", "lua: cannot read"),
    ] {
        let told = load(text, &["--set", option]).unwrap_err();
        let (key, _) = option.split_once('=').unwrap();
        assert!(told.starts_with(&format!("--set {key}: {why}")), "{told}");
    }
}

/// The schema in `examples` is the output of `retroscope dev schema`.
#[test]
fn the_schema_is_the_programs() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let written = fs::read_to_string(format!("{root}/examples/retroscope.schema.json")).unwrap();
    let read = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let of_program = read(&schema());
    assert_eq!(
        read(&written),
        of_program,
        "retroscope dev schema > examples/retroscope.schema.json"
    );
}

#[test]
fn the_help_is_short() {
    let program = Cli::command();
    let mut record = program
        .find_subcommand("record")
        .unwrap()
        .clone()
        .term_width(80);
    let options = record.get_arguments().filter(|arg| !arg.is_positional());
    let options = options.filter(|arg| arg.get_long() != Some("size")).count();
    assert!(options <= 45, "{options} options");
    let help = record.render_help().to_string();
    assert!(help.lines().count() <= 80, "{help}");
    for line in help.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    // Each option has one line that begins with a hyphen.
    let lines = help
        .lines()
        .filter(|line| line.trim_start().starts_with('-'));
    assert_eq!(lines.count(), options, "{help}");
    for heading in [
        "Input:",
        "Ring:",
        "Triggers:",
        "Dumps:",
        "Output:",
        "Service:",
    ] {
        assert!(help.lines().any(|line| line == heading), "{heading}");
    }
}

#[test]
fn options_of_before_are_refused_with_the_new_spelling() {
    for key in Settings::KEYS {
        assert_eq!(removed::of_key(&key.name()), None, "{}", key.name());
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let changes = fs::read_to_string(format!("{root}/CHANGELOG.md")).unwrap();
    for (old, new) in removed::KEYS {
        let why = load(&format!("{LO}{old} = 1\n"), &[]).unwrap_err();
        let (key, _) = new.split_once(" = ").unwrap_or((new, ""));
        assert!(why.contains(&format!("any more: write {new}")), "{why}");
        let row = format!("| `{old}` | `{new}` |");
        assert!(changes.contains(&row), "CHANGELOG lacks {row}");
        let path: Vec<_> = key.split('.').map(str::to_owned).collect();
        assert!(key_of(&path).is_ok(), "{new}");
    }
    for (old, instead) in removed::GONE {
        let why = load(&format!("{LO}{old} = 1\n"), &[]).unwrap_err();
        assert!(why.contains(&format!("any more: {instead}")), "{why}");
        let row = format!("| `{old}` | none: {instead} |");
        assert!(changes.contains(&row), "CHANGELOG lacks {row}");
    }
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
        ("config = 'x'", "f:2:1: there is no key \"config\""),
        ("help = true", "f:2:1: there is no key \"help\""),
        (
            "expression = 'udp'",
            "f:2:1: there is no key \"expression\"",
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
            "f:2:8: past: invalid type: sequence, expected a text or a number",
        ),
        ("past = {}", "f:2:8: past: invalid type: map"),
        ("past = 2026-11-26", "f:2:8: past: invalid type"),
        ("single = 'yes'", "f:2:10: single: invalid type: string"),
        (
            "trigger = [['udp']]",
            "f:2:12: trigger: invalid type: sequence",
        ),
        ("trigger = [1979-05-27]", "f:2:12: trigger: invalid type"),
        ("snaplen = 99999999999999999999", "f:2:11: snaplen: "),
        ("max-dumps = 0", "f:2:13: max-dumps: "),
        ("count = 0", "f:2:9: count: 0 is no whole number from 1"),
        (
            "dump-packets = '9223372036854775808'",
            "f:2:16: dump-packets: 9223372036854775808 is no whole number",
        ),
        (
            "post-user = 'root'",
            "f:2:13: post-user is about `post`: give that key too",
        ),
        (
            "format = 'pcapn'",
            "f:2:10: format: unknown variant `pcapn`, expected `pcapng` or `pcap`",
        ),
        (
            "analyzers = 'some'",
            "f:2:13: analyzers: it is 'inline', 'auto'",
        ),
        (
            "dump = ''\ndump-lua = 'x'",
            "f:3:1: 'dump' and 'dump-lua' exclude each other",
        ),
        ("vlans = 'apart'", "f:2:9: vlans needs --eve FILE"),
        ("history-goal = '1ms'", "f:2:16: --history-goal: 1s to 24h"),
        (
            "trigger-into = '1=x'",
            "f:2:1: there is no key \"trigger-into\" any more: write rule.NAME.into",
        ),
        (
            "cutoff = ['1KiB', 'udp=2KiB']",
            "f:2:11: --cutoff: a limit without an expression applies to all flows",
        ),
        (
            "[api]\npast = 1",
            "f:3:1: there is no key \"past\" in [api]",
        ),
        ("api = 'unix:x'\n[api]\nlisten = 'unix:y'", "duplicate key"),
        ("api = 'unix:x'", "f:2:7: api is a table: write [api]"),
        ("tokens = 'x'", "any more: write api.tokens"),
        ("[api]\ntokens = '/dev/null'", "api: nothing is served"),
        (
            "[api]\nlisten = 'unix:y'\ntls-key = '/dev/null'",
            "f:4:11: api.tls-key needs api.tls-cert",
        ),
        ("[past]", "past: invalid type: map"),
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
        ("[tables]\na = 1", "f:2:2: there is no key \"tables\""),
        ("[rule]\nname = 'a'", "f:2:1: write each rule as [[rule]]"),
        ("rule = 3", "f:2:8: write each rule as [[rule]]"),
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
            "f:2:1: a rule needs a name",
        ),
        (
            "[[rule]]\nname = 'a'\nfilter = 'udp'\npats = 1",
            "f:5:1: there is no key \"pats\" in [rule]; did you mean 'past'?",
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
    // Whether an engine supports a key is checked only if there is an interface. The generator of
    // the other cases has no engine.
    let told = load("interface = 'lo'\nbusy-poll = 10", &[]).unwrap_err();
    assert!(told.contains("f:2:13: busy-poll is for"), "{told}");
    let stamps = "interface = 'lo'\nengine = 'pcap'\ntime-stamps = 'hardware'";
    let told = load(stamps, &[]).unwrap_err();
    assert!(told.contains("f:3:15: time-stamps is for"), "{told}");
    // A syntax error of a filter also marks the place within the expression.
    let told = load(&format!("{LO}filter = 'udp prot 7'"), &[]).unwrap_err();
    assert!(told.ends_with("\n  udp prot 7\n      ^^^^"), "{told}");
    // All errors are reported at once, in the order of the file.
    let told = load(
        "past = 'x'\nfuture = 'y'\n[[rule]]\nname = 3\n[[rule]]\nfilter = true\n",
        &[],
    );
    let told = told.unwrap_err();
    let places = ["f:1:8: ", "f:2:10: ", "f:4:8: ", "f:6:10: "];
    let found: Vec<_> = places.iter().map(|place| told.find(place)).collect();
    assert!(found.is_sorted() && found[0].is_some(), "{told}");
    // Only the first 100 errors are listed.
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
    let refused = |path: &Path| Loaded::new(Some(path), &[]).unwrap_err().text();
    fs::write(&path, b"past = '1s'\ndump = '\xffx'\n").unwrap();
    assert!(refused(&path).contains("f:2:9: the byte 0xff is no UTF-8 text"));
    // Devices and directories are refused, and so is a regular file that is too long.
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
    // A pipe without a writer must not block.
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
    assert_eq!(loaded.settings.rule.len(), 3000);
    let (config, _) = loaded.resolve().unwrap();
    assert_eq!(config.names[2999], "r2999");
    assert_eq!(config.requests[2999].max_dumps, Some(3));
}

/// Triggers of the keys `trigger` and `trigger-lua` precede the rules of the same kind, also in the
/// list of names. So rules do not change the positions of these triggers within their kind.
#[test]
fn rules_stand_behind_the_triggers_of_their_kind() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("s.lua");
    fs::write(&script, "return function(pkt) return false end").unwrap();
    let script = script.display();
    let text = format!(
        "{LO}trigger = ['tcp']\ntrigger-lua = ['{script}']\n\
         [[rule]]\nname = 'l'\nlua = '{script}'\n[[rule]]\nname = 'f'\nfilter = 'icmp'\npast = '1s'\n"
    );
    let loaded = load(&text, &[]).unwrap();
    loaded.check_only().unwrap();
    let (config, _) = loaded.resolve().unwrap();
    assert_eq!(config.triggers, ["tcp", "icmp"]);
    assert_eq!(config.names, ["1", "f", "2", "l"]);
    let dumps: Vec<_> = config
        .requests
        .iter()
        .map(|it| it.dump.as_deref())
        .collect();
    assert_eq!(dumps, [None; 4]);
    assert!(config.requests[1].past.is_some() && config.requests[3].past.is_none());
    // A script that fails to load is reported at the place of its path in the file.
    fs::write(folder.path().join("s.lua"), "return 3").unwrap();
    let why = load(&text, &[]).unwrap().check_only().unwrap_err().text();
    assert!(why.contains(":3:16: "), "{why}");
}

#[test]
fn the_example_has_every_key() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = fs::read_to_string(root.join("examples/retroscope.toml")).unwrap();
    // The file is valid as it is.
    let loaded = load(&text, &[]).unwrap();
    assert_eq!(loaded.settings.rule.len(), 3);
    // The file is also valid with its commented keys. Each key is checked on its own, because some
    // keys exclude each other.
    let all = text.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with([' ', ':']) => key,
        _ => line,
    });
    let all = all.collect::<Vec<_>>().join("\n");
    let table = DeTable::parse(&all).unwrap().into_inner();
    let mut layers = Layers::default();
    layers.file(Settings::KEYS, &table, "");
    assert_eq!(layers.faults, []);
    let names = |keys: &[Key], table: &str| -> Vec<String> {
        let ours = keys.iter().filter(|key| key.shape != Shape::Table);
        ours.map(|key| format!("{table}{}", key.name())).collect()
    };
    let tables = Settings::KEYS
        .iter()
        .filter(|key| key.shape == Shape::Table);
    let inner = tables.flat_map(|key| match key.name().as_str() {
        "rule" => vec!["rule".to_owned()],
        table => names(key.keys, &format!("{table}.")),
    });
    let known: BTreeSet<String> = names(Settings::KEYS, "").into_iter().chain(inner).collect();
    assert_eq!(
        layers.origins.keys().cloned().collect::<BTreeSet<_>>(),
        known
    );
    let of_rules = layers.rules.iter().flat_map(BTreeMap::keys);
    let of_rules: BTreeSet<_> = of_rules.filter(|key| !key.is_empty()).cloned().collect();
    assert_eq!(
        of_rules,
        names(RuleSettings::KEYS, "").into_iter().collect()
    );
    // The list of keys that a reload applies has only existing keys.
    for key in reload::RELOADED {
        assert!(known.contains(key), "{key}");
    }
}

#[test]
fn documented_files_have_no_wrong_key() {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let packaged = root.join("contrib/debian/retroscope.toml");
    let daemon_set = fs::read_to_string(root.join("contrib/kubernetes/daemonset.yaml")).unwrap();
    let (_, config_map) = daemon_set.split_once("retroscope.toml: |\n").unwrap();
    let lines = config_map.lines().take_while(|line| *line != "---");
    let of_pods = lines.fold(String::new(), |text, line| text + line.trim_start() + "\n");
    let mut files = vec![fs::read_to_string(packaged).unwrap(), of_pods];
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
        // A block of a page may lack a source, so the command line names an interface.
        let loaded = load(&file, &[INTERFACE]);
        assert!(loaded.is_ok(), "{file}: {loaded:?}");
    }
}
