//! A WebSocket by somebody else's hand, and the HTTP beside it.

use crate::{client::SILENCE, daemon::Daemon};
use std::{
    io::{Read, Write},
    net::TcpStream,
};
use tungstenite::{ClientRequestBuilder, Error, HandshakeError, Message, WebSocket, http::Uri};

pub(crate) type Web = WebSocket<Box<dyn Stream>>;

pub(crate) trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

pub(crate) fn connect(daemon: &Daemon) -> Web {
    connect_with(Box::new(dial(daemon)), |request| request).expect("a WebSocket")
}

/// Does the handshake on a stream. If it is refused: the status, and what was said.
pub(crate) fn connect_with(
    stream: Box<dyn Stream>,
    change: impl FnOnce(ClientRequestBuilder) -> ClientRequestBuilder,
) -> Result<Web, (u16, String)> {
    let request = ClientRequestBuilder::new(Uri::from_static("ws://localhost/"));
    let request = change(request.with_sub_protocol("lockkeeper.v1"));
    match tungstenite::client(request, stream) {
        Ok((web, _)) => Ok(web),
        Err(HandshakeError::Failure(Error::Http(answer))) => {
            let words = answer.body().clone().unwrap_or_default();
            Err((answer.status().as_u16(), String::from_utf8_lossy(&words).into()))
        }
        Err(error) => panic!("neither a WebSocket nor an answer: {error}"),
    }
}

pub(crate) fn dial(daemon: &Daemon) -> TcpStream {
    let stream = TcpStream::connect(daemon.address()).expect("somebody listens");
    stream.set_read_timeout(Some(SILENCE)).expect("a socket takes a timeout");
    stream.set_nodelay(true).expect("a socket takes that");
    stream
}

pub(crate) fn say(web: &mut Web, bytes: Vec<u8>) {
    web.send(Message::Binary(bytes.into())).expect("the daemon listens");
}

/// The next message; `None` at the end.
pub(crate) fn hear(web: &mut Web) -> Option<Vec<u8>> {
    loop {
        match web.read() {
            Ok(Message::Binary(bytes)) => return Some(bytes.into()),
            Ok(Message::Text(text)) => panic!("the daemon says text: {text}"),
            Ok(_) => {}
            Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("nothing to hear")
            }
            Err(_) => return None,
        }
    }
}

/// Writes a request and reads all that comes back.
pub(crate) fn http(daemon: &Daemon, request: &str) -> String {
    let mut stream = dial(daemon);
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers in text, and closes");
    answer
}

pub(crate) fn get(daemon: &Daemon, path: &str) -> String {
    http(daemon, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
}
