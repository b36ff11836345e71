//! Questions to a handle about the dumps in the directory. The dump-lister lists and opens dumps,
//! the dump-keeper holds and deletes dumps: both have the privileges of the threads that write
//! dumps.

use std::io;

use serde_json::Value;

use super::handle::{CommandError, Handle};
use crate::dump::store::{
    StoredDump,
    keeper::{Keeper, Request},
    lister::{DumpFileReader, Question, StoredDumps},
    queue::NoAnswer,
};

impl Handle {
    /// The dumps in the directory and one level below it, the oldest first and open ones last: those of this recorder, and of earlier ones.
    ///
    /// # Errors
    /// [`CommandError`]; `Refused`: there is no directory for dumps; `Busy`, `DiskLate`: the disk
    /// is slow.
    pub fn dumps(&self) -> Result<StoredDumps, CommandError> {
        self.look(Question::List)
    }

    /// The ID of a dump of this recorder that is open, or among the last 10,000 that are finished, by its number.
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

    /// One of them, with its sidecar, which is `null` while it is open.
    ///
    /// # Errors
    /// As of [`Self::dumps`].
    pub fn dump(&self, id: &str) -> Result<Option<(StoredDump, Value)>, CommandError> {
        self.look(|reply| Question::Get(id.to_owned(), reply))
    }

    /// Opens a capture file of a dump, by the [name](crate::StoredFile::name) that it is listed by. Of an open dump's more is there when it is opened again, under
    /// the name that it has then.
    ///
    /// # Errors
    /// As of [`Self::dumps`]; `Refused`: there is no such file, or it cannot be read.
    pub fn open_dump_file(&self, id: &str, name: &str) -> Result<DumpFileReader, CommandError> {
        let open = |reply| Question::Open(id.to_owned(), name.to_owned(), reply);
        self.look(open)?.map_err(|error| refused(id, &error))
    }

    /// Holds a dump, open or not: it is not deleted, by whatever limit or whoever asks; or releases it. Whether that is new. It lasts, as the file `STEM.hold` beside it.
    ///
    /// # Errors
    /// As of [`Self::dumps`]; `Refused`: there is no such dump, or the mark cannot be made.
    pub fn hold_dump(&self, id: &str, is_held: bool) -> Result<bool, CommandError> {
        let hold = |reply| Request::Hold(id.to_owned(), is_held, reply);
        self.ask(hold)?.map_err(|error| refused(id, &error))
    }

    /// Deletes the files of a dump. Whether it was there. `by`: who asks, for the event.
    ///
    /// # Errors
    /// As of [`Self::dumps`]; `Refused`: it is open, held, or cannot be deleted.
    pub fn delete_dump(&self, id: &str, by: Option<&str>) -> Result<bool, CommandError> {
        let by = by.map(str::to_owned);
        let delete = |reply| Request::Delete(id.to_owned(), by, reply);
        self.ask(delete)?.map_err(CommandError::Refused)
    }

    fn look<T>(
        &self,
        question: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Question,
    ) -> Result<T, CommandError> {
        let answer = self.dump_keeper()?.look(question, self.answer_wait);
        answer.map_err(CommandError::from)
    }

    fn ask<T>(
        &self,
        request: impl FnOnce(std::sync::mpsc::SyncSender<T>) -> Request,
    ) -> Result<T, CommandError> {
        let answer = self.dump_keeper()?.ask(request, self.answer_wait);
        answer.map_err(CommandError::from)
    }

    fn dump_keeper(&self) -> Result<&Keeper, CommandError> {
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
