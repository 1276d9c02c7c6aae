//! A tiny HTTP server for the agent to talk to: what it answers can be changed while it runs, and
//! it remembers what it was asked.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What the server answers with.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

/// One request: its path and its headers as they came.
#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    pub headers: Vec<String>,
}

#[derive(Default)]
struct State {
    answer: Option<Answer>,
    requests: Vec<Request>,
}

/// The server; it ends when dropped.
pub struct Web {
    port: u16,
    state: Arc<Mutex<State>>,
    _task: JoinSet<()>,
}

impl Web {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state: Arc<Mutex<State>> = Arc::default();
        let mut task = JoinSet::new();
        task.spawn(serve(listener, state.clone()));
        Self {
            port,
            state,
            _task: task,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// From now on every request gets this.
    pub fn answer(&self, status: u16, body: impl Into<Vec<u8>>) {
        let body = body.into();
        self.with(|state| state.answer = Some(Answer { status, body }));
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.with(|state| state.requests.clone())
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(answer(stream, state.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        match stream.read_line(&mut line).await {
            Ok(1..) if line.trim().is_empty() => break,
            Ok(1..) => head.push(line.trim().to_owned()),
            _ => return,
        }
    }
    let path = head.first().and_then(|line| line.split(' ').nth(1));
    let request = Request {
        path: path.unwrap_or_default().to_owned(),
        headers: head.get(1..).unwrap_or_default().to_vec(),
    };
    let answer = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.requests.push(request);
        let nothing = Answer {
            status: 200,
            body: Vec::new(),
        };
        state.answer.clone().unwrap_or(nothing)
    };
    let head = format!(
        "HTTP/1.1 {} Answer\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.status,
        answer.body.len()
    );
    // A client that went away is no concern of the server.
    let _ = stream.write_all(head.as_bytes()).await;
    let _ = stream.write_all(&answer.body).await;
}
