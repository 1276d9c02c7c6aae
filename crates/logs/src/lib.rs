//! Container logs for who asks for them: the runtime's log files read from where the asker wants to
//! where he wants, across rotations, and followed by events for as long as the container runs. What is
//! held in memory is one piece per reader, however large the log and however slow the reader. The node's own log
//! files are found here, too, without being led out of their directory.

mod entry;
mod filter;
mod node_files;
mod reader;
mod segments;
mod tail;
mod watch;

pub use entry::{BadEntry, Entry, Stream, parse};
pub use filter::LogOptions;
pub use node_files::{Found, Listing, NodeFile, find};
pub use reader::{LogError, LogReader};
pub use watch::{DirectoryChanges, LogWatch};
