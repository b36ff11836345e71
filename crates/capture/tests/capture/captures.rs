//! Reads every capture of the shared corpus with the file engine: no panic, no hang, and the engine
//! counts exactly the frames that it lent.
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use retroscope_capture::{QueueStatus, Source, SourceError, SourceEvent, file::FileSource};

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Reads a file to its end or damage. Returns the number of frames, or the error.
fn read(path: &Path) -> Result<u64, SourceError> {
    let mut queue = Box::new(FileSource::new(path)).open(1)?.remove(0);
    let mut known = queue.interfaces().len();
    let mut frames = 0;
    let end = loop {
        let status = queue.next(Duration::ZERO);
        for frame in queue.burst().iter() {
            assert_eq!(frame.data.len(), frame.meta.captured_len as usize);
            assert!(usize::from(frame.meta.interface) < queue.interfaces().len());
            frames += 1;
        }
        while let Some(event) = queue.event() {
            assert_eq!(
                event,
                SourceEvent::InterfaceAdded(u16::try_from(known).unwrap())
            );
            known += 1;
        }
        assert_eq!(known, queue.interfaces().len());
        match status {
            Ok(QueueStatus::Frames) => assert!(!queue.burst().frames.is_empty()),
            Ok(QueueStatus::Idle) => panic!("a file is never idle"),
            Ok(QueueStatus::End) => break Ok(frames),
            Err(error) => break Err(error),
        }
    };
    assert_eq!(queue.statistics().received, Some(frames));
    assert_eq!(queue.next(Duration::ZERO).unwrap(), QueueStatus::End);
    end
}

#[test]
fn the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if !corpus.is_dir() {
        eprintln!("SKIP: no captures at {}", corpus.display());
        return;
    }
    let mut paths = Vec::new();
    files(&corpus, &mut paths);
    let (mut sound, mut damaged) = (0, 0);
    for path in paths {
        match read(&path) {
            Ok(_) => sound += 1,
            Err(SourceError::Damaged { message, .. }) => {
                assert!(!message.contains('\n'), "{}: {message}", path.display());
                damaged += 1;
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
    println!("{sound} sound, {damaged} damaged or no captures");
    assert!(
        sound > 100 && damaged > 0,
        "{sound} sound, {damaged} damaged or no captures"
    );
}
