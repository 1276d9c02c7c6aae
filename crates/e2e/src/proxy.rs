//! A door in front of containerd's socket, whose connections can be cut.

use std::path::{Path, PathBuf};

use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The door; it closes when dropped.
pub struct Proxy {
    path: PathBuf,
    cuts: watch::Sender<u32>,
    opened: watch::Receiver<u32>,
    _task: JoinSet<()>,
}

impl Proxy {
    /// Listens at `path` and passes all on to `target`.
    pub fn start(path: &Path, target: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let cuts = watch::Sender::new(0);
        let (opened, connections) = watch::channel(0);
        let mut task = JoinSet::new();
        task.spawn(serve(listener, target.to_owned(), cuts.clone(), opened));
        Self {
            path: path.to_owned(),
            cuts,
            opened: connections,
            _task: task,
        }
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Ends every connection there is, as if the other side had died.
    pub fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// How many connections were ever opened.
    pub fn opened(&self) -> u32 {
        *self.opened.borrow()
    }
}

async fn serve(
    listener: UnixListener,
    target: PathBuf,
    cuts: watch::Sender<u32>,
    opened: watch::Sender<u32>,
) {
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        opened.send_modify(|opened| *opened += 1);
        connections.spawn(pass(near, target.clone(), cuts.subscribe()));
        while connections.try_join_next().is_some() {}
    }
}

async fn pass(mut near: UnixStream, target: PathBuf, mut cuts: watch::Receiver<u32>) {
    let Ok(mut far) = UnixStream::connect(target).await else {
        return;
    };
    tokio::select! {
        biased;
        _ = cuts.changed() => {}
        _ = copy_bidirectional(&mut near, &mut far) => {}
    }
}
