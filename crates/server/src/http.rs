//! The little HTTP that a WebSocket begins with, and two questions that are answered without one: `/healthz` and
//! `/metrics`.

use crate::{daemon::Daemon, node::Node, relay};
use httparse::{EMPTY_HEADER, Error, Request, Status};
use lockkeeper_service::Access;
use lockkeeper_wire::websocket::{self, SUBPROTOCOL};
use std::{cell::RefCell, io, net::IpAddr, rc::Rc};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes and number of the headers that are listened to.
const HEAD: usize = 8 << 10;
const HEADERS: usize = 64;

/// What a port answers.
pub(crate) struct Pages<'a> {
    /// Pages of which origins may have a WebSocket; nobody may have one if there is no list.
    pub(crate) origins: Option<&'a [String]>,
    /// Whether `/healthz` and `/metrics` are there, and whether the latter names buckets.
    pub(crate) health: bool,
    pub(crate) buckets: bool,
    /// Whether it can be reached from this machine only: then no page has a reason to call it by another name.
    pub(crate) loopback: bool,
}

/// What a connection has become. The bytes are what was read after the request.
pub(crate) enum Upgraded {
    /// A WebSocket.
    WebSocket(Vec<u8>),
    /// A client of another daemon of the fleet, with what that daemon lets it do, for this leader.
    Relay(Vec<u8>, Access, Rc<RefCell<Daemon>>),
}

/// Answers a request. If it was for an upgrade, and has it now: what it is.
pub(crate) async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    pages: &Pages<'_>,
    node: &Node,
) -> io::Result<Option<Upgraded>> {
    let mut input = Vec::new();
    let mut relayed = None;
    let (answer, rest) = loop {
        let seen = input.len().saturating_sub(3);
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(None);
        }
        if input[seen..].windows(4).any(|end| end == b"\r\n\r\n") || input.len() > HEAD {
            let (answer, length) = respond(&input, |request| answer(request, pages, node, &mut relayed));
            break (answer, input.split_off(length));
        }
    };
    let upgraded = answer.starts_with("HTTP/1.1 101");
    stream.write_all(answer.as_bytes()).await?;
    stream.flush().await?;
    match (upgraded, relayed) {
        (true, Some((access, daemon))) => return Ok(Some(Upgraded::Relay(rest, access, daemon))),
        (true, None) => return Ok(Some(Upgraded::WebSocket(rest))),
        (false, _) => {}
    }
    stream.shutdown().await?;
    // Closing with something unread would reset the connection, and the answer could be lost.
    while stream.read_buf(&mut input).await? > 0 {
        input.clear();
    }
    Ok(None)
}

/// The answer to the request at the beginning of `input`, and how much of that it was: all, if it is no request.
pub(crate) fn respond(input: &[u8], answer: impl FnOnce(&Request<'_, '_>) -> String) -> (String, usize) {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(input) {
        Ok(Status::Complete(length)) if length <= HEAD => (answer(&request), length),
        Ok(_) | Err(Error::TooManyHeaders) => (plain(TOO_LONG, "too many headers\n"), input.len()),
        Err(error) => (plain(BAD, &format!("this is no HTTP: {error}\n")), input.len()),
    }
}

const OK: &str = "200 OK";
const BAD: &str = "400 Bad Request";
const FORBIDDEN: &str = "403 Forbidden";
const NOT_FOUND: &str = "404 Not Found";
const MISDIRECTED: &str = "421 Misdirected Request";
const METHOD: &str = "405 Method Not Allowed\r\nAllow: GET";
const UPGRADE: &str = "426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13";
const TOO_LONG: &str = "431 Request Header Fields Too Large";
const UNAVAILABLE: &str = "503 Service Unavailable";

fn answer(
    request: &Request<'_, '_>,
    pages: &Pages<'_>,
    node: &Node,
    relayed: &mut Option<(Access, Rc<RefCell<Daemon>>)>,
) -> String {
    if request.method != Some("GET") {
        return plain(METHOD, "only GET\n");
    }
    let path = request.path.unwrap_or("/").split('?').next().unwrap_or_default();
    match (path, pages.origins) {
        ("/healthz" | "/metrics", _) if pages.health && pages.loopback && !is_loopback(request) => {
            plain(MISDIRECTED, "this is not that host\n")
        }
        ("/healthz", _) if pages.health => match node.not_ready_reason() {
            None => plain(OK, "ok\n"),
            Some(why) => plain(UNAVAILABLE, &format!("{why}\n")),
        },
        ("/metrics", _) if pages.health => plain(OK, &node.metrics(pages.buckets)),
        ("/healthz" | "/metrics", _) | (_, None) => plain(NOT_FOUND, "there is no such page on this port\n"),
        (relay::PATH, Some(_)) => match node.relayed(header(request, relay::HEADER)) {
            Ok(access) => {
                *relayed = Some(access);
                format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {}\r\n\r\n",
                    relay::UPGRADE
                )
            }
            Err(why) => plain(FORBIDDEN, &format!("{why}\n")),
        },
        (_, Some(origins)) => {
            let answer = upgrade(request, origins);
            // Everybody who can connect can have this said.
            if answer.starts_with("HTTP/1.1 403") && node.gate.may_log_refusal() {
                let origin: String =
                    header(request, "origin").unwrap_or_default().chars().take(100).collect();
                tracing::warn!(?origin, "refused: not an allowed origin");
            }
            answer
        }
    }
}

/// Whether a request calls this machine by a name of its own. A page that has its own name resolve to this machine
/// could read the answer otherwise.
fn is_loopback(request: &Request<'_, '_>) -> bool {
    let Some(host) = header(request, "host") else { return true };
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => host,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

pub(crate) fn upgrade(request: &Request<'_, '_>, origins: &[String]) -> String {
    let allowed =
        |origin: &str| origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin));
    let origin =
        all(request, "origin").map(|origin| String::from_utf8_lossy(origin)).find(|origin| !allowed(origin));
    if let Some(origin) = origin {
        let why = format!("the origin {origin} is not allowed: --allow-origin says which are\n");
        return plain(FORBIDDEN, &why);
    }
    let version = header(request, "sec-websocket-version");
    if !has(request, "connection", "upgrade")
        || !has(request, "upgrade", "websocket")
        || version != Some("13")
    {
        return plain(
            UPGRADE,
            "Lockkeeper speaks WebSocket here, version 13; and there are /healthz and /metrics\n",
        );
    }
    if !has(request, "sec-websocket-protocol", SUBPROTOCOL) {
        return plain(BAD, &format!("the subprotocol {SUBPROTOCOL} must be offered\n"));
    }
    // Sixteen bytes, in base64.
    let Some(key) = header(request, "sec-websocket-key").filter(|key| key.len() == 24) else {
        return plain(BAD, "no Sec-WebSocket-Key\n");
    };
    let accept = websocket::accept(key);
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    )
}

fn all<'a>(request: &'a Request<'_, '_>, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let named = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.map(|header| header.value)
}

fn header<'a>(request: &'a Request<'_, '_>, name: &'a str) -> Option<&'a str> {
    std::str::from_utf8(all(request, name).next()?).ok()
}

/// Whether a header that is a list has a word. Such a header may stand several times.
fn has(request: &Request<'_, '_>, name: &str, word: &str) -> bool {
    let lists = all(request, name).filter_map(|list| std::str::from_utf8(list).ok());
    lists.flat_map(|list| list.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
}

fn plain(status: &str, text: &str) -> String {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{text}"
    )
}
