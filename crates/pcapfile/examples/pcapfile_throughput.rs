//! Measures how fast a capture is parsed from memory: `pcapfile_throughput FILE`. Prints the best
//! of five runs.
//!
//! The records of an uncompressed classic pcap file are repeated in memory until the file has at
//! least 1 GiB; other files are read unchanged. For comparison the program also prints how fast it
//! copies the same bytes.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::{env, error::Error, fs, hint::black_box, io::Read, time::Instant};

use retroscope_pcapfile::CaptureReader;

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("name a capture file")?;
    let mut file = fs::read(path)?;
    let format = CaptureReader::new(&file[..])?.format();
    if format.pcap.is_some() && format.compression.is_none() {
        let records = file[24..].to_vec();
        if records.is_empty() {
            return Err("the capture has no packets".into());
        }
        while file.len() < 1 << 30 {
            file.extend_from_slice(&records);
        }
    }
    let (mut parse, mut copy) = (f64::INFINITY, f64::INFINITY);
    let mut totals = (0, 0);
    for _ in 0..5 {
        let start = Instant::now();
        totals = read(&file)?;
        parse = parse.min(start.elapsed().as_secs_f64());
        let start = Instant::now();
        copy_through(&file)?;
        copy = copy.min(start.elapsed().as_secs_f64());
    }
    let (packets, bytes) = totals;
    let file_bytes = file.len() as f64;
    println!(
        "{packets} packets of {bytes} bytes: {:.0} MB/s of file, {:.1} Mpps, {:.1} ns a packet; copying alone {:.0} MB/s",
        file_bytes / parse / 1e6,
        packets as f64 / parse / 1e6,
        parse / packets as f64 * 1e9,
        file_bytes / copy / 1e6,
    );
    Ok(())
}

/// Reads the length and the time of each packet. Returns the numbers of packets and captured bytes.
fn read(file: &[u8]) -> Result<(u64, u64), Box<dyn Error>> {
    let mut reader = CaptureReader::new(file)?;
    let (mut bytes, mut times) = (0, 0);
    while reader.fill()? > 0 {
        for meta in reader.records() {
            bytes += u64::from(meta.captured_len);
            times ^= meta.time_ns;
        }
    }
    black_box(times);
    Ok((reader.records_read(), bytes))
}

/// Copies the bytes through a buffer of the reader's initial size, to measure reading without
/// parsing.
fn copy_through(mut file: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut buffer = vec![0; 512 << 10];
    while file.read(&mut buffer)? > 0 {
        black_box(&buffer);
    }
    Ok(())
}
