//! Finds finished dumps.
//!
//! Only reports in the recorder's log say of which stamps a dump has all packets that match its
//! filter. For other dumps, the losses are unknown here.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    io::Read,
    sync::Arc,
};

use super::Query;
use crate::{
    CommandError, DumpReport, RecorderHandle, StoredFile, Verdict, control::common::RecorderShared,
    parse_time,
};

/// First and last stamp, ns, both included.
pub(super) type StampRange = (i64, i64);

/// A place with dumps.
pub(super) trait DumpCatalog: fmt::Debug + Send + Sync {
    /// The finished dumps whose windows touch these stamps. The list may also have dumps of this
    /// recording that no longer exist.
    ///
    /// # Errors
    /// The reason why there is no list, in words.
    fn dumps(&self, wanted: StampRange) -> Result<Vec<CatalogDump>, String>;

    /// Opens the only capture file of a dump, which may have been compressed after it was listed.
    ///
    /// # Errors
    /// The reason, in words, for example that the file cannot be read or the sidecar was changed.
    fn open(&self, dump: &CatalogDump) -> Result<(Box<dyn Read + Send>, StoredFile), String>;
}

/// A dump that may be read.
#[derive(Debug, Clone)]
pub(super) struct CatalogDump {
    pub(super) id: String,
    /// Start of the window, as the text in the dump's report or sidecar.
    pub(super) from: String,
    /// End of the window, as the text in the dump's report or sidecar.
    pub(super) to: String,
    pub(super) span: StampRange,
    pub(super) files: Vec<StoredFile>,
    /// The stamps of which the dump has all packets that match its filter, losses at intake aside.
    /// `None`: the recorder's log has no report that fits the dump.
    pub(super) claims: Option<Vec<StampRange>>,
    /// The dump's filter in the recorder's log. Empty if `claims` is `None`.
    pub(super) expression: String,
    /// The UUID of the dump's recording; `None`: the packets have no IDs, or the dump is `gone`.
    pub(super) recording: Option<String>,
    /// The reason if the dump does not exist as it was written.
    pub(super) gone: Option<String>,
}

impl CatalogDump {
    /// The reason why the dump cannot be read, if that is known before it is opened.
    pub(super) fn fault(&self) -> Option<String> {
        let is_pcapng = matches!(self.files.as_slice(), [file] if file.is_pcapng());
        let why = "pcap tells neither interfaces nor directions";
        let gone = self.gone.clone();
        gone.or_else(|| (!is_pcapng).then(|| why.to_owned()))
    }
}

impl DumpCatalog for RecorderHandle {
    fn dumps(&self, wanted: StampRange) -> Result<Vec<CatalogDump>, String> {
        let common = self.common().map_err(|error| error.to_string())?;
        let touches = |(from_ns, to_ns): StampRange| from_ns <= wanted.1 && to_ns >= wanted.0;
        let own = || {
            let mut own = common.log.last();
            own.retain(|dump| span(&dump.from, &dump.to).is_some_and(touches));
            own
        };
        // A dump that is finished before the directory is listed should be in the list.
        let before: HashSet<String> = own().iter().map(|it| it.id.clone()).collect();
        let listed = match RecorderHandle::dumps(self) {
            Err(CommandError::Refused(_)) => return Ok(Vec::new()),
            listed => listed.map_err(|error| error.to_string())?,
        };
        // A dump of the list may have been finished meanwhile.
        let own = own().into_iter().map(|it| (it.id.clone(), it));
        let mut own: HashMap<String, Arc<DumpReport>> = own.collect();
        let mut shelved = Vec::new();
        for dump in listed.iter() {
            // Another dump may have the same ID by now.
            let is_it = |report: &DumpReport| {
                (&report.from, &report.to, report.packets) == (&dump.from, &dump.to, dump.packets)
            };
            let report = own.remove(&dump.id);
            let report = report.filter(|report| is_it(report));
            let span = span(&dump.from, &dump.to).filter(|span| touches(*span));
            let Some(span) = span.filter(|_| !dump.is_open) else {
                continue;
            };
            let is_changed = (report.as_ref()).is_some_and(|it| !is_as_written(it, &dump.files));
            shelved.push(CatalogDump {
                id: dump.id.clone(),
                from: dump.from.clone(),
                to: dump.to.clone(),
                span,
                files: dump.files.clone(),
                claims: (report.as_ref()).map(|report| claims(report, span, &common)),
                expression: report.map_or_else(String::new, |it| it.expression.clone()),
                recording: dump.recording.clone(),
                gone: is_changed.then(|| OTHER_FILES.to_owned()),
            });
        }
        // A finished dump without a sidecar is in no list.
        own.retain(|id, report| {
            before.contains(id) && report.sidecar && report.verdict != Verdict::Failed
        });
        shelved.extend(own.into_values().filter_map(|report| {
            Some(CatalogDump {
                span: span(&report.from, &report.to)?,
                id: report.id.clone(),
                from: report.from.clone(),
                to: report.to.clone(),
                files: Vec::new(),
                claims: Some(Vec::new()),
                recording: None,
                expression: report.expression.clone(),
                gone: Some("it is deleted, or not as it was written".to_owned()),
            })
        }));
        Ok(shelved)
    }

    fn open(&self, dump: &CatalogDump) -> Result<(Box<dyn Read + Send>, StoredFile), String> {
        opened(|| self.open_now(dump))
    }
}

#[derive(Debug)]
enum CaptureOpenError {
    /// The dump or its file is missing, was changed, or cannot be read.
    Changed(String),
    Failed(String),
}

impl From<CommandError> for CaptureOpenError {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Refused(why) => Self::Changed(why),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Opens a file. After [`CaptureOpenError::Changed`], tries once more: a compressed file may have
/// replaced the plain file meanwhile.
fn opened<T>(mut open: impl FnMut() -> Result<T, CaptureOpenError>) -> Result<T, String> {
    let first = match open() {
        Err(CaptureOpenError::Changed(_)) => open(),
        first => first,
    };
    first.map_err(|(CaptureOpenError::Changed(why) | CaptureOpenError::Failed(why))| why)
}

impl RecorderHandle {
    fn open_now(
        &self,
        dump: &CatalogDump,
    ) -> Result<(Box<dyn Read + Send>, StoredFile), CaptureOpenError> {
        let changed = |why: &str| CaptureOpenError::Changed(why.to_owned());
        let told = self.dump(&dump.id)?;
        let (stored, told) = told.ok_or_else(|| changed("it was deleted meanwhile"))?;
        if dump.claims.is_some() {
            if told["filter"].as_str() != Some(&dump.expression) {
                let why = "its sidecar has another filter than it was made with";
                return Err(changed(why));
            }
            let own = self.common()?.log.of_id(&dump.id);
            if !own.is_some_and(|it| is_as_written(&it, &stored.files)) {
                return Err(changed(OTHER_FILES));
            }
        }
        let [file] = <[StoredFile; 1]>::try_from(stored.files)
            .map_err(|files| CaptureOpenError::Failed(format!("it has {} files", files.len())))?;
        let opened = self.open_dump_file(&dump.id, &file.name)?;
        Ok((Box::new(opened.into_reader()), file))
    }
}

const OTHER_FILES: &str = "its sidecar lists other files than were written";

/// Whether a sidecar lists the files that the recorder wrote, plain or compressed. Another process
/// may have changed the sidecar.
fn is_as_written(report: &DumpReport, listed: &[StoredFile]) -> bool {
    report.files == listed || !report.replaced.is_empty() && report.replaced == listed
}

fn span(from: &str, to: &str) -> Option<StampRange> {
    let (from_ns, to_ns) = (parse_time(from).ok()?, parse_time(to).ok()?);
    (from_ns <= to_ns).then_some((from_ns, to_ns))
}

/// The stamps of which a dump of this recording has all packets that match its filter. Live, losses
/// at intake are ignored, because the recorder reports them in addition.
fn claims(
    report: &DumpReport,
    (from_ns, to_ns): StampRange,
    common: &RecorderShared,
) -> Vec<StampRange> {
    let is_clipped = |by: &str| report.clipped.contains(&by);
    let is_less = is_clipped("limit") || is_clipped("flow");
    if report.verdict == Verdict::Failed
        || report.is_stepped
        || report.is_disordered
        || is_less
        || !is_once(report, (from_ns, to_ns), common)
    {
        return Vec::new();
    }
    // If the clock was never set, no packet with a stamp of this clock is older than the recording.
    let is_steady = common.ring.steps().is_empty() && common.clock.count() == 0;
    let from_ns = if is_clipped("start") && is_steady {
        i64::MIN
    } else {
        from_ns
    };
    let missing = report.missing.iter();
    let missing = missing.filter(|missing| missing.source.is_none() || !common.is_live());
    let without: Vec<StampRange> = missing
        .map(|missing| span(&missing.from, &missing.to).unwrap_or((i64::MIN, i64::MAX)))
        .collect();
    uncovered((from_ns, to_ns), &without)
}

/// Whether the clocks showed the stamps of a dump's window only once.
fn is_once(report: &DumpReport, (from_ns, to_ns): StampRange, common: &RecorderShared) -> bool {
    if !common.is_live() {
        return common.ring.steps().is_empty();
    }
    let mut times = common.ring_times((from_ns, to_ns));
    times.dedup();
    let ring_ns = |ns: i64| ns.saturating_sub(report.offset_ns);
    times == [(ring_ns(from_ns), ring_ns(to_ns))]
}

/// The parts of `whole` that no range of `covered` has, in order.
pub(super) fn uncovered(whole: StampRange, covered: &[StampRange]) -> Vec<StampRange> {
    let mut covered = covered.to_vec();
    covered.sort_unstable();
    let mut left = Vec::new();
    let mut next = Some(whole.0);
    for (from_ns, to_ns) in covered {
        let Some(at_ns) = next.filter(|at_ns| *at_ns <= whole.1) else {
            break;
        };
        if to_ns < at_ns {
            continue;
        }
        if from_ns > at_ns {
            left.push((at_ns, (from_ns - 1).min(whole.1)));
        }
        next = to_ns.checked_add(1);
    }
    left.extend(
        next.filter(|at_ns| *at_ns <= whole.1)
            .map(|at_ns| (at_ns, whole.1)),
    );
    left
}

/// Whether a filter is sure to match every packet that a query asks for: it is empty, one of the
/// query's expressions, or the first part of an `and`. The caller must check host names, whose
/// addresses may have changed.
pub(super) fn takes_all_of(filter: &str, query: &Query) -> bool {
    let filter = filter.trim();
    // An expression may match more on a part of each packet than on the whole packet.
    let is_whole = query.tried_bytes.is_none() && !query.tried_headers;
    let asked = Some(query.expression.trim()).filter(|_| is_whole);
    let asked: Vec<&str> = asked.into_iter().chain([query.within.trim()]).collect();
    filter.is_empty() || asked.into_iter().any(|asked| is_head(filter, asked))
}

/// Whether `asked` is `filter`, or `filter and …`.
fn is_head(filter: &str, asked: &str) -> bool {
    if asked == filter {
        return true;
    }
    let in_parentheses = format!("({filter})");
    let rest = match asked.strip_prefix(&in_parentheses) {
        Some(rest) => Some(rest),
        None => asked.strip_prefix(filter).filter(|_| !has_or(filter)),
    };
    let rest = rest.map(str::trim_start).filter(|rest| {
        let is_word = |rest: &str| rest.starts_with([' ', '\t', '\n', '(', '!']);
        rest.strip_prefix("and").is_some_and(is_word) || rest.starts_with("&&")
    });
    rest.is_some_and(|rest| !has_or(rest))
}

/// Whether the text may have an `or` outside of parentheses.
fn has_or(text: &str) -> bool {
    let mut depth = 0_i32;
    let mut outside = String::new();
    for c in text.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        outside.push(if depth == 0 { c } else { ' ' });
    }
    let is_word = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let mut words = outside.split(|c| !is_word(c));
    text.contains(['"', '\'', '\\']) || outside.contains('|') || words.any(|word| word == "or")
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, sync::atomic::Ordering};

    use super::*;
    use crate::{
        Missing,
        dump::report::report_of_test,
        rfc3339,
        tests::rig::{Rig, RigConfig, S},
    };

    #[test]
    fn what_a_dump_is_sure_to_have() {
        const START: i64 = 1000 * S;
        let dir = tempfile::tempdir().unwrap();
        let rig = Rig::new(&RigConfig::default(), START, dir.path());
        let window = (START + S, START + 3 * S);
        let report = || DumpReport {
            from: rfc3339(window.0),
            to: rfc3339(window.1),
            clipped: Vec::new(),
            ..report_of_test()
        };
        let claimed = |report: &DumpReport| claims(report, window, &rig.common);
        rig.pass(5 * S);
        assert_eq!(claimed(&report()), [window]);
        let clipped = |by| DumpReport {
            clipped: vec![by],
            ..report()
        };
        assert_eq!(claimed(&clipped("start")), [(i64::MIN, window.1)]);
        assert_eq!(claimed(&clipped("stop")), [window]);
        let less = [
            clipped("limit"),
            clipped("flow"),
            DumpReport {
                is_stepped: true,
                ..report()
            },
            DumpReport {
                is_disordered: true,
                ..report()
            },
            DumpReport {
                verdict: Verdict::Failed,
                ..report()
            },
        ];
        less.iter().for_each(|it| assert_eq!(claimed(it), []));
        // A loss in the ring (`evicted`) counts. A loss at intake does not count.
        let mut lacking = report();
        let missing = Missing::new("evicted", window.0, window.0 + 9, None);
        let before = Missing {
            source: Some("eth0".to_owned()),
            ..Missing::new("kernel", window.0 + S, window.1, Some(7))
        };
        lacking.missing = vec![missing, before];
        assert_eq!(claimed(&lacking), [(window.0 + 10, window.1)]);
        // The clock was set back and shows some stamps of the window again.
        rig.clock.wall_ns.fetch_sub(3 * S, Ordering::SeqCst);
        rig.common.clock.now();
        assert_eq!(claimed(&report()), []);
        let early = (START - 9 * S, START - 8 * S);
        assert_eq!(claims(&clipped("start"), early, &rig.common), [early]);
    }

    #[test]
    fn a_sidecar_may_list_the_plain_file_or_the_compressed_one() {
        let file = |name: &str| StoredFile {
            name: name.to_owned(),
            bytes: 7,
            sha256: None,
        };
        let (plain, compressed) = ([file("a.pcapng")], [file("a.pcapng.zst")]);
        let mut report = report_of_test();
        report.files = plain.to_vec();
        let listed = |report: &DumpReport| {
            [&plain[..], &compressed, &[]].map(|listed| is_as_written(report, listed))
        };
        assert_eq!(listed(&report), [true, false, false]);
        report.files = compressed.to_vec();
        report.replaced = plain.to_vec();
        assert_eq!(listed(&report), [true, true, false]);
    }

    #[test]
    fn only_a_file_that_was_changed_is_opened_again() {
        let tries = |error: fn() -> CommandError| {
            let mut tries = 0;
            let opened = opened::<()>(|| {
                tries += 1;
                Err(error().into())
            });
            (tries, opened == Err(error().to_string()))
        };
        assert_eq!(tries(|| CommandError::DiskLate), (1, true));
        assert_eq!(tries(|| CommandError::Busy), (1, true));
        assert_eq!(tries(|| CommandError::Ended), (1, true));
        let missing = || CommandError::Refused("no such file".to_owned());
        assert_eq!(tries(missing), (2, true));
    }

    #[test]
    fn what_is_left_of_a_stretch() {
        const ALL: StampRange = (i64::MIN, i64::MAX);
        for (whole, covered, left) in [
            ((0, 9), &[][..], &[(0, 9)][..]),
            ((0, 9), &[(0, 9)], &[]),
            ((0, 9), &[(5, 20), (-3, 4)], &[]),
            ((0, 9), &[(6, 7), (2, 3), (2, 5)], &[(0, 1), (8, 9)]),
            ((0, 9), &[(10, 20), (-9, -1)], &[(0, 9)]),
            ((0, 9), &[(3, 3), (20, 30)], &[(0, 2), (4, 9)]),
            (ALL, &[(0, i64::MAX)], &[(i64::MIN, -1)]),
            (ALL, &[(i64::MIN, 0)], &[(1, i64::MAX)]),
            (ALL, &[ALL], &[]),
            ((9, 0), &[], &[]),
        ] {
            assert_eq!(uncovered(whole, covered), left, "{whole:?} {covered:?}");
        }
    }

    #[test]
    fn a_filter_takes_all_of_a_query_or_that_is_not_known() {
        let query = |expression: &str, within: &str| Query {
            expression: expression.to_owned(),
            within: within.to_owned(),
            ..Query::default()
        };
        for (filter, expression, within, takes) in [
            ("", "", "", true),
            ("", "udp", "tcp", true),
            ("tcp", "", "", false),
            ("tcp", "udp", "", false),
            ("tcp", " tcp ", "", true),
            ("tcp", "udp", "tcp", true),
            ("tcp", "tcp and port 80", "", true),
            ("tcp", "tcp and(port 80 or port 81)", "", true),
            ("tcp", "tcp && port 80", "", true),
            ("tcp", "(tcp) and port 80", "", true),
            ("tcp", "tcp and port 80 or udp", "", false),
            ("tcp", "tcp and port 80 || udp", "", false),
            ("tcp", "tcp or udp", "", false),
            ("tcp", "tcp port 80", "", false),
            ("tcp", "tcp andover", "", false),
            ("tcp", "not tcp", "", false),
            ("tcp or udp", "tcp or udp and port 80", "", false),
            ("tcp or udp", "(tcp or udp) and port 80", "", true),
            ("tcp", "tcp and payload contains \" or \"", "", false),
        ] {
            let taken = takes_all_of(filter, &query(expression, within));
            assert_eq!(taken, takes, "{filter} {expression} {within}");
        }
        let partly = Query {
            tried_bytes: NonZeroU32::new(60),
            ..query("tcp", "udp")
        };
        assert!(!takes_all_of("tcp", &partly) && takes_all_of("udp", &partly));
        let headers = Query {
            tried_headers: true,
            ..query("tcp", "")
        };
        assert!(!takes_all_of("tcp", &headers) && takes_all_of("", &headers));
    }
}
