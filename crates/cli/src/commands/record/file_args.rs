//! Keys about the files of dumps.

use retroscope_recorder::{Config, PostConfig};

use super::config::Settings;

impl Settings {
    /// Returns `config` with the settings of dump files. The identity of `post` stays `None`.
    pub(crate) fn dump_files(&self, config: Config) -> Config {
        Config {
            name: self.name.0.clone(),
            zstd: self.compress.map(|it| *it),
            sha256: self.sha256.unwrap_or(config.sha256),
            keep: self.keep.map(|it| *it).unwrap_or_default(),
            min_free: self.min_free.map(|it| *it),
            post: self.post.clone().map(|command| PostConfig {
                command: command.0,
                limit: *self.post_limit,
                at_once: self.post_at_once.0.0 as usize,
                identity: None,
            }),
            ..config
        }
    }
}
