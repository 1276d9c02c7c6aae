//! As much of the D-Bus protocol as it takes to ask one peer to do something: authentication as the user
//! we are, calls and their answers, and the signals that come in between.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Answers are short; a longer one is none of ours.
const LONGEST: usize = 1 << 20;
/// The first part of a message, before the fields of its header.
const FIXED: usize = 16;
const CALL: u8 = 1;
const ANSWER: u8 = 2;
const FAILURE: u8 = 3;
const SIGNAL: u8 = 4;

/// What can stand in an argument or a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Texts(Vec<String>),
    Flag(bool),
    Number(u64),
    /// `a(sv)`.
    Properties(Vec<(&'static str, Value)>),
    /// An empty `a(sa(sv))`: no further units.
    NoUnits,
}

impl Value {
    fn signature(&self) -> &'static str {
        match self {
            Value::Text(_) => "s",
            Value::Texts(_) => "as",
            Value::Flag(_) => "b",
            Value::Number(_) => "t",
            Value::Properties(_) => "a(sv)",
            Value::NoUnits => "a(sa(sv))",
        }
    }
}

/// Bytes in the making; everything stands at a multiple of its own size.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn align(&mut self, to: usize) {
        let length = self.0.len().next_multiple_of(to);
        self.0.resize(length, 0);
    }

    fn number(&mut self, n: u32) {
        self.align(4);
        self.0.extend(n.to_le_bytes());
    }

    fn length(&mut self, n: usize) {
        self.number(u32::try_from(n).unwrap_or(u32::MAX));
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(0));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    /// Its length in bytes is known when all is written; the gap before the first does not count.
    fn array(&mut self, align: usize, items: impl FnOnce(&mut Self)) {
        self.number(0);
        let at = self.0.len() - 4;
        self.align(align);
        let start = self.0.len();
        items(self);
        let length = u32::try_from(self.0.len() - start).unwrap_or(u32::MAX);
        self.0[at..at + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Text(text) => self.text(text),
            Value::Texts(texts) => self.array(4, |e| texts.iter().for_each(|t| e.text(t))),
            Value::Flag(flag) => self.number(u32::from(*flag)),
            Value::Number(n) => {
                self.align(8);
                self.0.extend(n.to_le_bytes());
            }
            Value::Properties(all) => self.array(8, |e| {
                for (name, value) in all {
                    e.align(8);
                    e.text(name);
                    e.signature(value.signature());
                    e.value(value);
                }
            }),
            Value::NoUnits => self.array(8, |_| {}),
        }
    }

    /// One field of a header: what it is, and a text of that kind.
    fn field(&mut self, code: u8, kind: &str, text: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(kind);
        match kind {
            "g" => self.signature(text),
            _ => self.text(text),
        }
    }
}

/// Whom a call is for.
pub(super) struct Target {
    pub(super) destination: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
}

fn call(serial: u32, target: &Target, member: &str, arguments: &[Value]) -> Vec<u8> {
    let mut body = Encoder::default();
    arguments.iter().for_each(|a| body.value(a));
    let signature: String = arguments.iter().map(Value::signature).collect();
    let mut message = Encoder(vec![b'l', CALL, 0, 1]);
    message.length(body.0.len());
    message.number(serial);
    message.array(8, |e| {
        e.field(1, "o", target.path);
        e.field(2, "s", target.interface);
        e.field(3, "s", member);
        e.field(6, "s", target.destination);
        e.field(8, "g", &signature);
    });
    message.align(8);
    message.0.extend(body.0);
    message.0
}

/// Bytes that came, read in order.
struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(n)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let text = String::from_utf8_lossy(self.take(length)?).into_owned();
        self.take(1)?;
        Some(text)
    }

    fn signature(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(*self.take(1)?.first()?);
        let text = self.take(length)?;
        self.take(1)?;
        Some(text)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Header {
    kind: u8,
    reply_to: Option<u32>,
    error: Option<String>,
    member: Option<String>,
}

/// Fields we have no use for are passed over, as far as their kind is known.
fn header(bytes: &[u8]) -> Option<Header> {
    let mut found = Header {
        kind: *bytes.get(1)?,
        ..Header::default()
    };
    let mut decoder = Decoder { bytes, at: 12 };
    let end = FIXED.checked_add(usize::try_from(decoder.number()?).ok()?)?;
    while decoder.at < end {
        decoder.align(8);
        let code = *decoder.take(1)?.first()?;
        match decoder.signature()? {
            b"s" | b"o" => {
                let text = decoder.text()?;
                match code {
                    3 => found.member = Some(text),
                    4 => found.error = Some(text),
                    _ => {}
                }
            }
            b"u" => {
                let number = decoder.number()?;
                if code == 5 {
                    found.reply_to = Some(number);
                }
            }
            b"g" => {
                decoder.signature()?;
            }
            _ => return None,
        }
    }
    Some(found)
}

struct Message {
    header: Header,
    body: Vec<u8>,
}

/// What a call came to.
#[derive(Debug)]
pub(super) enum Answer {
    /// The first text of it, such as the path of a job.
    Done(Option<String>),
    /// The error's name, and what it says.
    Failed(String, String),
}

/// A connection to one peer.
pub(super) struct Connection {
    stream: UnixStream,
    serial: u32,
    /// Jobs that ended while an answer was waited for, with their results.
    ended: Vec<(String, String)>,
}

impl Connection {
    pub(super) fn open(socket: &Path, patience: Duration) -> io::Result<Self> {
        Self::over(UnixStream::connect(socket)?, patience)
    }

    fn over(stream: UnixStream, patience: Duration) -> io::Result<Self> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut connection = Self {
            stream,
            serial: 0,
            ended: Vec::new(),
        };
        connection.authenticate()?;
        Ok(connection)
    }

    /// The kernel tells the peer who we are; we only claim it.
    fn authenticate(&mut self) -> io::Result<()> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let claim: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
        let line = format!("\0AUTH EXTERNAL {claim}\r\n");
        self.stream.write_all(line.as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 512 {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            line.extend(byte);
        }
        if !line.starts_with(b"OK ") {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.stream.write_all(b"BEGIN\r\n")
    }

    pub(super) fn call(
        &mut self,
        target: &Target,
        member: &str,
        arguments: &[Value],
    ) -> io::Result<Answer> {
        self.serial += 1;
        // Whoever wanted to know of earlier ones has asked by now.
        self.ended.clear();
        let message = call(self.serial, target, member, arguments);
        self.stream.write_all(&message)?;
        loop {
            let message = self.read()?;
            if message.header.reply_to != Some(self.serial) {
                self.note(&message);
                continue;
            }
            let mut body = Decoder {
                bytes: &message.body,
                at: 0,
            };
            match message.header.kind {
                ANSWER => return Ok(Answer::Done(body.text())),
                FAILURE => {
                    let name = message.header.error.unwrap_or_default();
                    return Ok(Answer::Failed(name, body.text().unwrap_or_default()));
                }
                _ => {}
            }
        }
    }

    /// Waits for the end of a job of systemd's, and tells its result.
    pub(super) fn job_result(&mut self, job: &str) -> io::Result<String> {
        loop {
            if let Some((_, result)) = self.ended.iter().find(|(path, _)| path == job) {
                return Ok(result.clone());
            }
            let message = self.read()?;
            self.note(&message);
        }
    }

    /// `JobRemoved`: number, path, unit, result.
    fn note(&mut self, message: &Message) {
        let removed = message.header.member.as_deref() == Some("JobRemoved");
        if message.header.kind != SIGNAL || !removed {
            return;
        }
        let mut body = Decoder {
            bytes: &message.body,
            at: 0,
        };
        let mut parse = || {
            body.number()?;
            let job = body.text()?;
            body.text()?;
            Some((job, body.text()?))
        };
        self.ended.extend(parse());
    }

    fn read(&mut self) -> io::Result<Message> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let mut bytes = vec![0; FIXED];
        self.stream.read_exact(&mut bytes)?;
        let number = |at: usize| {
            let four = bytes[at..at + 4].try_into().unwrap_or_default();
            usize::try_from(u32::from_le_bytes(four)).unwrap_or(usize::MAX)
        };
        let (body, fields) = (number(4), number(12));
        if bytes[0] != b'l' || body > LONGEST || fields > LONGEST {
            return Err(wrong());
        }
        bytes.resize((FIXED + fields).next_multiple_of(8), 0);
        self.stream.read_exact(&mut bytes[FIXED..])?;
        let header = header(&bytes).ok_or_else(wrong)?;
        let mut body = vec![0; body];
        self.stream.read_exact(&mut body)?;
        Ok(Message { header, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target {
        destination: "org.example",
        path: "/org/example",
        interface: "org.example.Manager",
    };

    #[test]
    fn a_call_byte_by_byte() {
        let target = Target {
            destination: "d",
            path: "/",
            interface: "i.i",
        };
        let arguments = [
            Value::Text("ab".into()),
            Value::Properties(vec![("N", Value::Number(1))]),
        ];
        let expected: &[&[u8]] = &[
            b"l\x01\x00\x01",
            &[40, 0, 0, 0],
            &[7, 0, 0, 0],
            &[76, 0, 0, 0],
            b"\x01\x01o\0\x01\0\0\0/\0\0\0\0\0\0\0",
            b"\x02\x01s\0\x03\0\0\0i.i\0\0\0\0\0",
            b"\x03\x01s\0\x01\0\0\0M\0\0\0\0\0\0\0",
            b"\x06\x01s\0\x01\0\0\0d\0\0\0\0\0\0\0",
            b"\x08\x01g\0\x06sa(sv)\0\0\0\0\0",
            b"\x02\0\0\0ab\0\0",
            &[24, 0, 0, 0, 0, 0, 0, 0],
            b"\x01\0\0\0N\0\x01t\0\0\0\0\0\0\0\0",
            &[1, 0, 0, 0, 0, 0, 0, 0],
        ];
        let got = call(7, &target, "M", &arguments);
        assert_eq!(got, expected.concat());
        let header = header(&got).unwrap();
        assert_eq!((header.kind, header.member.as_deref()), (CALL, Some("M")));
    }

    /// A message as a peer would send it.
    fn message(kind: u8, fields: impl FnOnce(&mut Encoder), body: &[u8]) -> Vec<u8> {
        let mut message = Encoder(vec![b'l', kind, 0, 1]);
        message.length(body.len());
        message.number(1);
        message.array(8, fields);
        message.align(8);
        message.0.extend(body);
        message.0
    }

    fn reply_to(e: &mut Encoder, serial: u32) {
        e.align(8);
        e.0.push(5);
        e.signature("u");
        e.number(serial);
    }

    fn texts(texts: &[&str]) -> Vec<u8> {
        let mut body = Encoder::default();
        texts.iter().for_each(|t| body.text(t));
        body.0
    }

    /// Plays the other side: says its lines, whatever it hears.
    fn peer(mut stream: UnixStream, lines: Vec<Vec<u8>>) -> std::thread::JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            stream.write_all(b"OK 1234\r\n").unwrap();
            stream.write_all(&lines.concat()).unwrap();
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).unwrap();
            heard
        })
    }

    #[test]
    fn calls_answers_and_signals() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut removed = Encoder::default();
        removed.number(3);
        ["/job/3", "a.slice", "done"]
            .iter()
            .for_each(|t| removed.text(t));
        let signal = message(SIGNAL, |e| e.field(3, "s", "JobRemoved"), &removed.0);
        let answer = message(ANSWER, |e| reply_to(e, 1), &texts(&["/job/3"]));
        let failure = message(
            FAILURE,
            |e| {
                e.field(4, "s", "org.example.Exists");
                reply_to(e, 2);
            },
            &texts(&["it is there"]),
        );
        let other = peer(theirs, vec![signal, answer, failure]);
        let mut connection = Connection::over(ours, Duration::from_secs(20)).unwrap();
        let first = connection.call(&TARGET, "Start", &[]).unwrap();
        let Answer::Done(Some(job)) = first else {
            panic!("{first:?}")
        };
        assert_eq!(connection.job_result(&job).unwrap(), "done");
        let second = connection
            .call(&TARGET, "Start", &[Value::Flag(true)])
            .unwrap();
        let Answer::Failed(name, text) = second else {
            panic!("{second:?}")
        };
        assert_eq!(
            (name.as_str(), text.as_str()),
            ("org.example.Exists", "it is there")
        );
        drop(connection);
        let heard = other.join().unwrap();
        assert!(heard.starts_with(b"\0AUTH EXTERNAL "));
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [
            &b""[..],
            b"l\x02",
            &[0xff; 64],
            &[b'l', 2, 0, 1, 0, 0, 0, 0],
        ] {
            assert_eq!(header(bytes).filter(|h| h.kind == ANSWER), None);
        }
        let endless = [b"l\x02\0\x01".as_slice(), &[0xff; 12]].concat();
        assert_eq!(header(&endless), None);
    }
}
