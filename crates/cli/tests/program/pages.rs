//! The Markdown pages in the root of the repository and in docs/. Every relative link leads to an
//! existing file and heading. The book's table of contents lists every page in docs/ once.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The Markdown files of a folder and, if `deep`, of the folders below.
fn pages(folder: &Path, deep: bool) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && deep {
            all.extend(pages(&path, deep));
        } else if path.extension().is_some_and(|it| it == "md") {
            all.push(path);
        }
    }
    all
}

/// Lines outside of code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The targets of `[text](target)` outside of code blocks.
fn links(text: &str) -> Vec<&str> {
    let lines = prose(text).flat_map(|line| line.split("](").skip(1));
    lines
        .filter_map(|rest| rest.split_once(')'))
        .map(|it| it.0)
        .collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
            kept.map(|it| if it == ' ' { '-' } else { it }).collect()
        })
        .collect()
}

#[test]
fn every_link_leads_somewhere() {
    let root = root();
    let mut all = pages(&root, false);
    all.extend(pages(&root.join("docs"), true));
    let (mut faults, mut tried) = (Vec::new(), 0);
    for page in &all {
        let text = fs::read_to_string(page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            tried += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                _ => page.parent().unwrap().join(path),
            };
            let is_there = target.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor));
            if !is_there {
                faults.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(tried > 100, "{tried} links were found");
}

#[test]
fn the_book_lists_every_page_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut listed: Vec<PathBuf> = links(&summary).iter().map(|it| docs.join(it)).collect();
    let mut there = pages(&docs, true);
    there.retain(|it| !it.ends_with("SUMMARY.md"));
    listed.sort_unstable();
    there.sort_unstable();
    assert_eq!(listed, there);
}
