//! Requests to a handle about the dumps in the directory. Other threads, with the privileges of the
//! writers of dumps, list, open, hold and delete the dumps.

use std::io;

use serde_json::Value;

use super::handle::{CommandError, RecorderHandle};
use crate::dump::store::{
    StoredDump,
    keeper::KeeperHandle,
    lister::{DumpFileReader, StoredDumps},
    queue::NoAnswer,
};

impl RecorderHandle {
    /// The dumps in the directory and one level below, oldest first and open dumps last. The list
    /// includes dumps of earlier recorders.
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: there is no directory for dumps; `Busy`, `DiskLate`: the disk
    /// is slow.
    pub fn dumps(&self) -> Result<StoredDumps, CommandError> {
        Ok(self.dump_keeper()?.dumps(self.answer_wait)?)
    }

    /// The ID of a dump with this number, if the dump is open or among the last 10,000 finished
    /// dumps of this recorder.
    ///
    /// # Errors
    /// [`CommandError::Ended`].
    pub fn dump_id(&self, number: u64) -> Result<Option<String>, CommandError> {
        let open = self.keeper.as_ref().and_then(|it| it.id_of_open(number));
        match open {
            Some(id) => Ok(Some(id)),
            None => Ok(self.common()?.log.id_of(number)),
        }
    }

    /// A dump and its sidecar, which is `null` while the dump is open.
    ///
    /// # Errors
    /// As for [`Self::dumps`].
    pub fn dump(&self, id: &str) -> Result<Option<(StoredDump, Value)>, CommandError> {
        Ok(self.dump_keeper()?.dump(id, self.answer_wait)?)
    }

    /// Opens a capture file of a dump, by its [name](crate::StoredFile::name) in the list. The file
    /// of an open dump grows; to read more, open it again under its current name.
    ///
    /// # Errors
    /// As for [`Self::dumps`]; `Refused`: there is no such file, or it cannot be read.
    pub fn open_dump_file(&self, id: &str, name: &str) -> Result<DumpFileReader, CommandError> {
        let opened = (self.dump_keeper()?).open_file(id, name, self.answer_wait)?;
        opened.map_err(|error| refused(id, &error))
    }

    /// Holds a dump, open or not, or releases the dump. Neither a limit nor a client deletes a held
    /// dump. The mark persists as the file `STEM.hold` next to the dump. Returns whether the mark
    /// changed.
    ///
    /// # Errors
    /// As for [`Self::dumps`]; `Refused`: there is no such dump, or the mark cannot be made.
    pub fn hold_dump(&self, id: &str, is_held: bool) -> Result<bool, CommandError> {
        let held = self.dump_keeper()?.hold(id, is_held, self.answer_wait)?;
        held.map_err(|error| refused(id, &error))
    }

    /// Deletes the files of a dump. Returns whether the dump existed. `by`: the client, for the
    /// event.
    ///
    /// # Errors
    /// As for [`Self::dumps`]; `Refused`: the dump is open, held, or cannot be deleted.
    pub fn delete_dump(&self, id: &str, by: Option<&str>) -> Result<bool, CommandError> {
        let deleted = self.dump_keeper()?.delete(id, by, self.answer_wait)?;
        deleted.map_err(CommandError::Refused)
    }

    fn dump_keeper(&self) -> Result<&KeeperHandle, CommandError> {
        self.keeper.as_ref().ok_or_else(|| {
            CommandError::Refused("there is no directory for dumps: nothing is dumped".to_owned())
        })
    }
}

impl From<NoAnswer> for CommandError {
    fn from(why: NoAnswer) -> Self {
        match why {
            NoAnswer::Busy => Self::Busy,
            NoAnswer::Late => Self::DiskLate,
            NoAnswer::Ended => Self::Ended,
        }
    }
}

fn refused(id: &str, error: &io::Error) -> CommandError {
    CommandError::Refused(format!("dump {id}: {error}"))
}
