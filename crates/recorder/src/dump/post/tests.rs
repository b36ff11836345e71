use std::{fs, time::Duration};

use super::*;
use crate::{Subscription, dump::report::report_of_test};

fn words(text: &str) -> Result<Vec<String>, String> {
    PostCommand::new(text).map(|command| command.0)
}

#[test]
fn words_are_split_as_a_shell_does() {
    let all = |text: &str| words(text).unwrap();
    assert_eq!(all("a  b\tc"), ["a", "b", "c"]);
    assert_eq!(all(r#"a 'b c' "d 'e'" f\ g"#), ["a", "b c", "d 'e'", "f g"]);
    assert_eq!(all(r#"a '\' "\"" x''y '' "#), ["a", "\\", "\"", "xy", ""]);
    assert_eq!(
        all("a ;rm $HOME `b` * > c | d"),
        ["a", ";rm", "$HOME", "`b`", "*", ">", "c", "|", "d"]
    );
    for bad in ["", "  ", "'a", "a \"b", "a \\", "''"] {
        assert!(words(bad).is_err(), "{bad}");
    }
}

#[test]
fn what_a_dump_has_is_filled_in_once() {
    let dump = PostJob {
        number: 7,
        id: "x".to_owned(),
        rule: "{file} $(reboot) 'x'".to_owned(),
        verdict: "complete",
        trigger_time: String::new(),
        files: vec!["d/x y.pcapng".into(), "d/x.2".into()],
        sidecar: "d/x.json".into(),
    };
    let fill = |text| PostCommand::new(text).unwrap().words(&dump);
    assert_eq!(fill("a -v"), ["a", "-v", "d/x y.pcapng", "d/x.2"]);
    assert_eq!(
        fill("a --in={file} {sidecar}{verdict} {x}"),
        ["a", "--in=d/x y.pcapng", "d/x.jsoncomplete", "{x}"]
    );
    // Filled-in text is not expanded again.
    assert_eq!(fill("a {rule} {file}")[1], dump.rule);
}

#[test]
fn no_value_of_a_dump_starts_an_option() {
    let hostile = "-esh -c reboot";
    let mut dump = PostJob {
        number: 7,
        id: hostile.to_owned(),
        rule: hostile.to_owned(),
        verdict: "complete",
        trigger_time: String::new(),
        files: vec![hostile.into()],
        sidecar: hostile.into(),
    };
    for name in ["{file}", "{sidecar}", "{id}", "{rule}"] {
        let fill = |dump: &PostJob, word: String| {
            let command = PostCommand::new(&format!("rsync {word} {{file}}")).unwrap();
            command.words(dump)[1].clone()
        };
        let guarded = format!("./{hostile}");
        assert_eq!(fill(&dump, name.to_owned()), guarded);
        assert_eq!(fill(&dump, format!("{name}:/x")), format!("{guarded}:/x"));
        // An option of the command itself stays.
        assert_eq!(fill(&dump, format!("-o{name}")), format!("-o{hostile}"));
        // An empty value before the guarded one makes no difference.
        dump.rule.clear();
        let expected = if name == "{rule}" { "" } else { &guarded };
        assert_eq!(fill(&dump, format!("{{rule}}{name}")), expected);
        hostile.clone_into(&mut dump.rule);
        assert!(PostCommand::new(&format!("/hooks/{name} x")).is_err());
    }
    assert!(PostCommand::new("/hooks/{verdict} x").is_ok());
}

fn run(
    command: &str,
    limit: Duration,
    at_once: usize,
    dumps: u64,
) -> (Vec<PostOutcome>, PostCounts) {
    let config = PostConfig {
        command: PostCommand::new(command).unwrap(),
        limit,
        at_once,
        identity: None,
    };
    let events = Events::new();
    let listener = events.log().subscribe(Some(0));
    let (post, queue) = Post::start(&config, events).unwrap();
    let counter = post.counter();
    for number in 0..dumps {
        let mut report = report_of_test();
        report.number = number;
        queue.submit(&report);
    }
    drop(queue);
    assert!(post.join());
    (outcomes(listener), counter.counts())
}

fn outcomes(mut listener: Subscription) -> Vec<PostOutcome> {
    let mut outcomes = Vec::new();
    while let Ok(event) = listener.take(Duration::ZERO) {
        match event {
            RecorderEvent::Posted(posted) => outcomes.push(posted.outcome),
            other => panic!("{other:?}"),
        }
    }
    outcomes
}

#[test]
fn each_end_is_told_and_counted() {
    let minute = Duration::from_secs(60);
    let one = |command| run(command, minute, 1, 1).0.remove(0);
    assert_eq!(one("true"), PostOutcome::Done);
    assert_eq!(one("sh -c 'exit 7'"), PostOutcome::Failed { code: Some(7) });
    assert_eq!(one("sh -c 'kill -9 $$'"), PostOutcome::Killed { signal: 9 });
    let missing = one("/no/such/program");
    assert!(
        matches!(missing, PostOutcome::NotStarted { .. }),
        "{missing:?}"
    );
    let (_, counts) = run("sh -c 'exit 7'", minute, 3, 20);
    assert_eq!((counts.failed, counts.to_be_done), (20, 0));
}

/// The command gets the file's path as an argument, facts about the dump in its environment, and an
/// empty stdin.
#[test]
fn a_command_is_told_of_its_dump() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let script = r#"read x; echo "$1|$RETROSCOPE_FILE|$RETROSCOPE_SIDECAR|$RETROSCOPE_RULE|$RETROSCOPE_VERDICT|$RETROSCOPE_NUMBER|$x" > "$0""#;
    let command = format!("sh -c '{script}' {}", out.display());
    let (outcomes, _) = run(&command, Duration::from_secs(60), 1, 1);
    assert_eq!(outcomes, [PostOutcome::Done]);
    let told = fs::read_to_string(out).unwrap();
    assert_eq!(told, "d/x.pcapng|d/x.pcapng|d/x.json|udp|complete|0|\n");
}

#[test]
fn a_command_that_takes_too_long_is_ended_with_its_group() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    let script = r#"trap "" TERM; sleep 1000 & echo $! > "$0.new"; mv "$0.new" "$0"; wait; wait"#;
    let command = format!("sh -c '{script}' {}", pid.display());
    let since = Instant::now();
    let (outcomes, counts) = run(&command, Duration::from_millis(500), 1, 1);
    assert_eq!(outcomes, [PostOutcome::TimedOut]);
    assert_eq!(counts.timed_out, 1);
    assert!(since.elapsed() < Duration::from_secs(100));
    // The shell may have ended before it wrote the file.
    if let Ok(text) = fs::read_to_string(pid) {
        let process = format!("/proc/{}/stat", text.trim());
        let is_gone = || {
            let stat = fs::read_to_string(&process);
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_gone() {
            assert!(Instant::now() < deadline, "{process}");
            std::thread::yield_now();
        }
    }
}

/// Waiting for a command does not reap the command. Until the command is reaped, no other process
/// can have its number, so its group can be ended safely.
#[test]
fn a_leader_that_has_ended_is_there_until_it_is_reaped() {
    let mut child = Command::new("true").process_group(0).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !wait_for(&child, LOOK).unwrap() {
        assert!(Instant::now() < deadline);
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    assert!(stat.contains(") Z "), "{stat}");
    kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Dumps without room in the queue are skipped. An abort ends running commands and skips waiting
/// commands.
#[test]
fn commands_hold_nobody_up() {
    let config = PostConfig {
        command: PostCommand::new("sh -c 'sleep 1000'").unwrap(),
        limit: Duration::from_secs(1000),
        at_once: 2,
        identity: None,
    };
    let events = Events::new();
    let listener = events.log().subscribe(Some(0));
    let (post, queue) = Post::start(&config, events).unwrap();
    for _ in 0..WAITING_MAX + 10 {
        queue.submit(&report_of_test());
    }
    let waiting = queue.shared.counts();
    assert!(
        waiting.skipped >= 8 && waiting.to_be_done <= WAITING_MAX as u64 + 2,
        "{waiting:?}"
    );
    queue.abort();
    let counter = post.counter();
    drop(queue);
    assert!(post.join());
    let counts = counter.counts();
    let all = counts.skipped + counts.timed_out + counts.not_started;
    assert_eq!(
        (all, counts.to_be_done),
        (WAITING_MAX as u64 + 10, 0),
        "{counts:?}"
    );
    drop(listener);
}

#[test]
fn without_its_identity_nothing_runs() {
    let config = PostConfig {
        command: PostCommand::new("true").unwrap(),
        limit: Duration::from_secs(1),
        at_once: 2,
        identity: Some(Arc::new(|| Err("no such user".into()))),
    };
    let refused = Post::start(&config, Events::new()).unwrap_err();
    assert_eq!(refused.to_string(), "no such user");
}
