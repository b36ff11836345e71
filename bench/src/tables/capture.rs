//! What programs reach on live traffic.

use super::blocks::{cell, distinct, table};
use super::names::{count, find, parts};
use crate::rows::Row;

/// Ends the names of rows that say how fast a program's sender was.
const ITS_SENDER: &str = "-sender";

/// Highest rates without loss: a line for each program, a column for each size; where it is known, of what its sender reached.
pub(super) fn lossless(rows: &[Row]) -> Option<String> {
    const GROUP: &str = "capture/lossless/";
    let found = || {
        rows.iter().filter_map(|row| {
            let [size, program]: [&str; 2] = parts(row, GROUP)?;
            let is_program = !program.ends_with(ITS_SENDER);
            is_program.then_some((count(size, "B")?, program))
        })
    };
    let sizes = distinct(found().map(|(size, _)| size));
    let mut heading = vec!["Mpps by bytes".to_owned()];
    heading.extend(sizes.iter().map(u32::to_string));
    let line = |program: &str| {
        let mut line = vec![program.to_owned()];
        line.extend(sizes.iter().map(|size| {
            let name = format!("{GROUP}{size}B/{program}");
            let rate = cell(find(rows, &name));
            match find(rows, &format!("{name}{ITS_SENDER}")) {
                Some(sender) => format!("{rate} of {}", cell(Some(sender))),
                None => rate,
            }
        }));
        line
    };
    let programs = distinct(found().map(|(_, program)| program));
    let lines: Vec<_> = programs.into_iter().map(line).collect();
    table(&heading, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::names::made_up;

    #[test]
    fn programs_are_lines_and_sizes_columns() {
        let rows = [
            made_up("capture/lossless/64B/sender", 0.75, "Mpps"),
            made_up("capture/lossless/64B/tcpdump", 0.5, "Mpps"),
            made_up("capture/lossless/64B/tcpdump-sender", 0.625, "Mpps"),
            made_up("capture/lossless/1514B/retroscope", 0.25, "Mpps"),
        ];
        let expected = "| Mpps by bytes | 64 | 1514 |\n|---|---|---|\n\
            | retroscope | – | 0.250 |\n| sender | 0.750 | – |\n\
            | tcpdump | 0.500 of 0.625 | – |\n";
        assert_eq!(lossless(&rows).unwrap(), expected);
        assert_eq!(lossless(&[]), None);
    }
}
