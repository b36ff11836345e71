//! Compares `Program::disassemble` with the output of `tcpdump -d`.

use std::process::Command;

use crate::common::{rows, savefile, shared};
use retroscope_filter::compile;
use retroscope_packet::LinkType;

/// The test compares only every `STEP`th valid Ethernet filter of the table.
const STEP: usize = 5;

#[test]
fn programs_read_as_tcpdump_prints_them() {
    let Some(table) = shared("filters.tsv") else {
        return;
    };
    if Command::new("tcpdump").arg("--version").output().is_err() {
        eprintln!("SKIP: tcpdump is not installed; nothing was tested");
        return;
    }
    let mut compared = 0;
    for row in rows(&table)
        .iter()
        .filter(|row| row[1] == "EN10MB" && row[2] == "ok")
        .step_by(STEP)
    {
        let filter = &row[4];
        let output = Command::new("tcpdump")
            .args(["-d", "-y", "EN10MB", "-s", "262144", "--", filter])
            .output();
        let theirs = output.expect("tcpdump runs");
        if !theirs.status.success() {
            // tcpdump refuses this filter without a savefile, for example `ip broadcast` without a
            // netmask.
            continue;
        }
        let program = compile(filter, savefile(LinkType::ETHERNET, 262_144))
            .unwrap_or_else(|error| panic!("{}", error.render()));
        assert_eq!(
            program.disassemble(),
            String::from_utf8_lossy(&theirs.stdout),
            "filter: {filter}"
        );
        compared += 1;
    }
    assert!(compared >= 100, "{compared} filters were compared");
}
