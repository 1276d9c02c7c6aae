//! Container logs for who asks for them: the runtime's log files read from where the asker wants to
//! where he wants, across rotations, and followed by events for as long as the container runs. What is
//! held in memory is one piece per reader, however large the log and however slow the reader.

mod entry;
mod filter;
mod reader;
mod segments;
mod tail;
mod watch;

pub use entry::{BadEntry, Entry, Stream, parse};
pub use filter::LogOptions;
pub use reader::{LogError, LogReader};
pub use watch::{DirectoryChanges, LogWatch};
