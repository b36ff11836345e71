//! The arguments about dumps' files.

use std::time::Duration;

use retroscope_recorder::{
    Config, MinFree, NameTemplate, PostCommand, PostConfig, RetentionLimit, ZstdLevel,
};

use super::args::numbered;
use crate::units;

/// How dumps' files are written.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FileArgs {
    /// What dumps' files are called: letters, digits, '.', '_', '-', and {time} {date} {number} {rule} {interface} {host}. A name that is taken gets another number
    #[arg(long, value_name = "TEMPLATE", default_value = "{time}-{number}-{rule}", value_parser = NameTemplate::new)]
    name: NameTemplate,

    /// Compress dumps' files when they are complete: `zstd`, or `zstd:LEVEL` with 1 to 19, 3 where none is told. They are called NAME.pcapng.zst then
    #[arg(long, value_name = "zstd[:LEVEL]", value_parser = compression)]
    compress: Option<ZstdLevel>,

    /// Leave the SHA-256 of dumps' files out of their sidecars. This is the default on processors
    /// without SHA instructions
    #[arg(long)]
    no_sha256: bool,

    /// Write the SHA-256 of dumps' files into their sidecars. This is the default on processors
    /// with SHA instructions; other processors take 4 to 7 s per GB
    #[arg(long, conflicts_with = "no_sha256")]
    sha256: bool,

    /// Delete dumps, the oldest first, where those in the directory have more bytes, or are older: `50GiB`, `30d`, or both, as `50GiB,30d`. Those of earlier recorders count; a dump that has
    /// a file NAME.hold beside it stays
    #[arg(long, value_name = "SIZE,TIME", value_parser = keep)]
    keep: Option<RetentionLimit>,

    /// What is kept of the Nth trigger's dumps, beside --keep for all: `2=10GiB,7d`; repeat for several
    #[arg(long, value_name = "N=SIZE,TIME", value_parser = numbered)]
    pub(crate) trigger_keep: Vec<(usize, String)>,

    /// Delete dumps, the oldest first, where the file system has less room than this, as `10%` or `20GiB`, and where it is full
    #[arg(long, value_name = "PERCENT|SIZE", value_parser = min_free)]
    min_free: Option<MinFree>,

    /// Run this for each dump that is finished, without a shell: words are split as a shell does ('…', "…", \). {file} {sidecar} {id} {rule} {verdict} are filled in; without {file} the paths of the
    /// captures are put behind. It has no capabilities, and the user of -Z
    #[arg(long, value_name = "CMD", value_parser = PostCommand::new)]
    post: Option<PostCommand>,

    /// How long one of --post may take; then it is ended, with its process group
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "post", value_parser = units::duration)]
    post_limit: Duration,

    /// How many of --post run at once; of the others 1,000 wait
    #[arg(long, value_name = "N", default_value_t = 2, requires = "post", value_parser = clap::value_parser!(u16).range(1..=64))]
    post_at_once: u16,

    /// Run --post as this user (a name, or UID:GID), who has to be able to read the dumps; takes root
    #[arg(long, value_name = "USER", requires = "post")]
    pub(crate) post_user: Option<String>,
}

/// An argument of --keep.
pub(crate) fn keep(text: &str) -> Result<RetentionLimit, String> {
    let mut keep = RetentionLimit::default();
    for part in text.split(',') {
        let is_second = match (units::size(part), units::duration(part)) {
            (Ok(_), Ok(_)) => {
                return Err(format!(
                    "{part:?} may be a size or a time: say 5MiB or 5min"
                ));
            }
            (Ok(bytes), Err(_)) => keep.bytes.replace(bytes).is_some(),
            // A plain number is neither: of what?
            (Err(_), Ok(age)) if part.ends_with(char::is_alphabetic) => {
                keep.age.replace(age).is_some()
            }
            _ => {
                return Err(format!(
                    "{part:?} is neither a size nor a time: write it like 50GiB,30d"
                ));
            }
        };
        if is_second {
            return Err("a size and a time, each once, as 50GiB,30d".to_owned());
        }
    }
    Ok(keep)
}

/// An argument of --compress.
fn compression(text: &str) -> Result<ZstdLevel, String> {
    let (method, level) = text.split_once(':').unwrap_or((text, "3"));
    let level = level.parse().ok().and_then(ZstdLevel::new);
    let level = level.filter(|_| method == "zstd");
    level.ok_or_else(|| "zstd, or zstd:LEVEL with a level of 1 to 19".to_owned())
}

/// An argument of --min-free.
fn min_free(text: &str) -> Result<MinFree, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return units::size(text).map(MinFree::Bytes);
    };
    let percent = percent.parse::<f64>().ok();
    let percent = percent.filter(|percent| (0.0..100.0).contains(percent));
    let percent = percent.ok_or_else(|| "0% to 99%, or a size, as 20GiB".to_owned())?;
    Ok(MinFree::Percent(percent))
}

impl FileArgs {
    /// A configuration with what they say.
    pub(crate) fn apply(&self, config: Config) -> Config {
        Config {
            name: self.name.clone(),
            zstd: self.compress,
            sha256: self.sha256 || config.sha256 && !self.no_sha256,
            keep: self.keep.unwrap_or_default(),
            min_free: self.min_free,
            post: self.post.clone().map(|command| PostConfig {
                command,
                limit: self.post_limit,
                at_once: self.post_at_once.into(),
                identity: None,
            }),
            ..config
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_kept() {
        let read = |text| keep(text).map(|keep| (keep.bytes, keep.age));
        let day = Duration::from_secs(86_400);
        assert_eq!(read("50GiB"), Ok((Some(50 << 30), None)));
        assert_eq!(read("30d"), Ok((None, Some(30 * day))));
        assert_eq!(read("1GiB,2d"), Ok((Some(1 << 30), Some(2 * day))));
        assert_eq!(read("2d,1GiB"), read("1GiB,2d"));
        for bad in [
            "",
            "50",
            "5m",
            "x",
            "1GiB,",
            "1GiB,2GiB",
            "1d,2d",
            "1GiB,2d,3d",
            "1GiB 2d",
        ] {
            assert!(keep(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn room_that_is_left() {
        assert_eq!(min_free("10%"), Ok(MinFree::Percent(10.0)));
        assert_eq!(min_free("2.5%"), Ok(MinFree::Percent(2.5)));
        assert_eq!(min_free("20GiB"), Ok(MinFree::Bytes(20 << 30)));
        for bad in ["", "%", "10", "100%", "-1%", "NaN%", "x%"] {
            assert!(min_free(bad).is_err(), "{bad}");
        }
    }
}
