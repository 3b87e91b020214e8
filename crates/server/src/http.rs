//! The HTTP before a WebSocket, and the requests that are answered without one: `/healthz`,
//! `/metrics` and the dashboard.

use crate::{daemon::Daemon, dashboard, examples, node::Node, relay};
use httparse::{EMPTY_HEADER, Error, Request, Status};
use lockkeeper_service::Access;
use lockkeeper_wire::{
    v2::{ToClient, code},
    websocket::{self, SUBPROTOCOL},
};
use std::{cell::RefCell, io, net::IpAddr, rc::Rc};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How many headers are listened to.
const HEADERS: usize = 64;

/// The pages and upgrades of a port.
pub(crate) struct Pages<'a> {
    /// The origins whose pages may open a WebSocket; none may without a list.
    pub(crate) origins: Option<&'a [String]>,
    /// Whether the origin of a page names its bucket.
    pub(crate) per_origin: bool,
    /// Whether `/healthz` and `/metrics` are there, and whether the latter names buckets.
    pub(crate) health: bool,
    pub(crate) buckets: bool,
    /// The longest head of a request.
    pub(crate) head: usize,
    /// Whether there are examples.
    pub(crate) examples: bool,
    /// The requesting client, for the audit.
    pub(crate) by: String,
    /// Whether it was reached at an address of the loopback: no page has a reason to call that by
    /// another name.
    pub(crate) loopback: bool,
}

/// The kind of an upgraded connection.
pub(crate) enum Upgraded {
    WebSocket(Opened),
    /// A client of another daemon of the fleet, with what that daemon lets it do, for this leader.
    Relay(Access, Rc<RefCell<Daemon>>),
}

/// A WebSocket, as its handshake has it.
pub(crate) struct Opened {
    /// The origin of its page, if a browser opened it and it is not the daemon's own.
    pub(crate) origin: Option<String>,
    /// Whether a proxy says that it stands between.
    pub(crate) relayed: bool,
}

/// A response: a page, or the answer to a handshake.
pub(crate) struct Response {
    pub(crate) bytes: Vec<u8>,
    /// The upgraded connection, if the client is admitted.
    pub(crate) upgraded: Option<Upgraded>,
}

/// Answers a request. If it was upgraded, returns the kind of the connection, and the bytes read
/// after the request.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    pages: &Pages<'_>,
    node: &Node,
) -> io::Result<Option<(Upgraded, Vec<u8>)>> {
    let mut input = Vec::new();
    let mut asks_fleet = false;
    let (Response { mut bytes, upgraded }, rest) = loop {
        let seen = input.len().saturating_sub(3);
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(None);
        }
        if input[seen..].windows(4).any(|end| end == b"\r\n\r\n") || input.len() > pages.head {
            let (response, length) =
                respond(&input, pages.head, |request| match fleet_question(request, pages, node) {
                    None => answer(request, pages, node),
                    Some(allowed) => {
                        asks_fleet = allowed.is_ok();
                        plain(FORBIDDEN, &allowed.err().unwrap_or_default())
                    }
                });
            break (response, input.split_off(length));
        }
    };
    if asks_fleet {
        bytes = fleet_report(node).await.bytes;
    }
    stream.write_all(&bytes).await?;
    stream.flush().await?;
    if let Some(upgraded) = upgraded {
        return Ok(Some((upgraded, rest)));
    }
    stream.shutdown().await?;
    // Closing with something unread would reset the connection, and the answer could be lost.
    while stream.read_buf(&mut input).await? > 0 {
        input.clear();
    }
    Ok(None)
}

/// The answer to a client that cannot be served.
pub(crate) fn refusal(why: &str) -> Vec<u8> {
    plain(UNAVAILABLE, why).bytes
}

/// The answer to the request at the beginning of `input`, and how much of that it was: all, if it
/// is no request.
pub(crate) fn respond(
    input: &[u8],
    max: usize,
    answer: impl FnOnce(&Request<'_, '_>) -> Response,
) -> (Response, usize) {
    let mut headers = [EMPTY_HEADER; HEADERS];
    let mut request = Request::new(&mut headers);
    match request.parse(input) {
        Ok(Status::Complete(length)) if length <= max => (answer(&request), length),
        Ok(_) | Err(Error::TooManyHeaders) => {
            let why = format!("at most {HEADERS} headers, and {max} bytes (max-hello-bytes)\n");
            (plain(TOO_LONG, &why), input.len())
        }
        Err(error) => (plain(BAD, &format!("not an HTTP request: {error}\n")), input.len()),
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

fn answer(request: &Request<'_, '_>, pages: &Pages<'_>, node: &Node) -> Response {
    if request.method != Some("GET") {
        return plain(METHOD, "only GET\n");
    }
    let path = path(request);
    if let Some((kind, text)) = examples::find(path).filter(|_| pages.examples) {
        return page(kind, text, examples::POLICY);
    }
    // A WebSocket may have any path.
    let served = pages.origins.is_some() && !has_any(request, "upgrade");
    if let Some((kind, text)) = dashboard::find(path).filter(|_| served) {
        return match pages.loopback && !is_loopback(request) {
            true => plain(MISDIRECTED, "the Host header must be a loopback name or address\n"),
            false => page(kind, text, dashboard::POLICY),
        };
    }
    match (path, pages.origins) {
        ("/healthz" | "/metrics", _) if pages.health && pages.loopback && !is_loopback(request) => {
            plain(MISDIRECTED, "the Host header must be a loopback name or address\n")
        }
        ("/healthz", _) if pages.health => match node.unhealthy_reason() {
            None => plain(OK, "ok\n"),
            Some(why) => plain(UNAVAILABLE, &format!("{why}\n")),
        },
        ("/metrics", _) if pages.health => plain(OK, &node.metrics(pages.buckets)),
        ("/healthz" | "/metrics", _) | (_, None) => plain(NOT_FOUND, "there is no such page on this port\n"),
        (relay::PATH, Some(_)) => match node.relayed(header(request, relay::HEADER)) {
            Ok((access, daemon)) => {
                let upgrade = relay::UPGRADE;
                let why = node.unhealthy_reason().map(|why| {
                    let line = why.replace(|c: char| c.is_control(), " ");
                    format!("{}: {line}\r\n", relay::UNHEALTHY)
                });
                let head = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n{}\r\n",
                    why.unwrap_or_default()
                );
                Response { bytes: head.into_bytes(), upgraded: Some(Upgraded::Relay(access, daemon)) }
            }
            Err(why) => plain(FORBIDDEN, &format!("{why}\n")),
        },
        (_, Some(origins)) => {
            let record = |why: &str| node.gate.record_refusal(&pages.by, "", why);
            let has_keys = node.gate.has_keys();
            upgrade(request, origins, pages.per_origin, pages.examples, has_keys, record)
        }
    }
}

/// Whether a request is for the fleet's state, and if so, whether it is allowed. The token is in a
/// header, never in the URL. Without keys, the `Host` must be a loopback name, as for the WebSocket
/// of a page.
fn fleet_question(request: &Request<'_, '_>, pages: &Pages<'_>, node: &Node) -> Option<Result<(), String>> {
    let asked = request.method == Some("GET") && request.path == Some("/fleet") && pages.origins.is_some();
    asked.then(|| {
        let token = header(request, "authorization").and_then(|value| value.strip_prefix("Bearer "));
        match node.gate.has_keys() || is_loopback(request) {
            true => node.gate.may_inspect(token).map_err(|why| format!("{why}\n")),
            false => Err("without keys, only clients on this machine may ask\n".into()),
        }
    })
}

/// How the fleet is; null if there is none.
async fn fleet_report(node: &Node) -> Response {
    match &node.fleet {
        None => page("application/json", "null", dashboard::POLICY),
        Some(fleet) => match fleet.report().await {
            Ok(json) => page("application/json", &json, dashboard::POLICY),
            Err(why) => plain(UNAVAILABLE, &format!("{why}\n")),
        },
    }
}

/// Whether the `Host` is a loopback name or address. Otherwise a page whose own name resolves to
/// this machine could read the answer.
fn is_loopback(request: &Request<'_, '_>) -> bool {
    let Some(host) = header(request, "host") else { return true };
    let host = match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => host,
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Opens a WebSocket. A page whose origin is refused gets a message of the protocol, because
/// browsers hide an HTTP status from pages. Its input is not read.
pub(crate) fn upgrade(
    request: &Request<'_, '_>,
    origins: &[String],
    per_origin: bool,
    examples: bool,
    has_keys: bool,
    record: impl FnOnce(&str),
) -> Response {
    let is_dashboard = path(request) == dashboard::SOCKET && is_own_page(request, has_keys);
    let refused = match is_dashboard || examples && is_own_page(request, false) {
        true => None,
        false => refused_origin(request, origins, per_origin),
    };
    if let Some(why) = &refused {
        record(why);
    }
    let head = match (handshake(request), &refused) {
        (Ok(head), _) => head,
        (Err(_), Some(why)) => return plain(FORBIDDEN, &format!("{why}\n")),
        (Err(response), None) => return response,
    };
    let Some(why) = refused else {
        // The dashboard has no bucket of its own: it names the one to show. With keys, its token
        // decides.
        let origin = header(request, "origin").filter(|_| !is_dashboard).map(str::to_ascii_lowercase);
        let relayed = ["forwarded", "x-forwarded-for", "via"].iter().any(|name| has_any(request, name));
        let opened = Upgraded::WebSocket(Opened { origin, relayed });
        return Response { bytes: head.into_bytes(), upgraded: Some(opened) };
    };
    let mut bytes = head.into_bytes();
    websocket::append(&mut bytes, None, |out| {
        ToClient::Goodbye { code: code::UNAUTHORIZED, message: &why }.encode(out);
    });
    websocket::append_close(&mut bytes, None);
    Response { bytes, upgraded: None }
}

fn path<'a>(request: &Request<'a, '_>) -> &'a str {
    request.path.unwrap_or("/").split('?').next().unwrap_or_default()
}

/// Whether a page has the origin of the host asked for. Behind a proxy that keeps the host's name,
/// pages of an application have it too. So has a page whose own name resolves to this machine:
/// without keys, only names of the loopback count. With keys, such a page has no token.
fn is_own_page(request: &Request<'_, '_>, has_keys: bool) -> bool {
    let (Some(origin), Some(host)) = (header(request, "origin"), header(request, "host")) else {
        return false;
    };
    let same = origin.split_once("://").is_some_and(|(_, named)| named.eq_ignore_ascii_case(host));
    same && (has_keys || is_loopback(request)) && all(request, "origin").count() == 1
}

/// Why a page may not connect.
fn refused_origin(request: &Request<'_, '_>, origins: &[String], per_origin: bool) -> Option<String> {
    let allowed =
        |origin: &str| origins.iter().any(|allowed| allowed == "*" || allowed.eq_ignore_ascii_case(origin));
    let named = || all(request, "origin").map(|origin| String::from_utf8_lossy(origin));
    let why = match named().find(|origin| !allowed(origin)) {
        Some(origin) => format!("the origin {origin} is not allowed: --allow-origin says which are"),
        // An origin that names a bucket must be a single one that other pages cannot have.
        None if per_origin
            && (named().count() > 1
                || named().any(|origin| {
                    origin == "null" || !origin.bytes().all(|byte| byte.is_ascii_graphic())
                })) =>
        {
            "an opaque origin has no bucket (--bucket-per-origin)".into()
        }
        None => return None,
    };
    Some(why)
}

/// The answer to a handshake, or what is said to who does not do one.
fn handshake(request: &Request<'_, '_>) -> Result<String, Response> {
    let version = header(request, "sec-websocket-version");
    if !has(request, "connection", "upgrade")
        || !has(request, "upgrade", "websocket")
        || version != Some("13")
    {
        let words = "Lockkeeper speaks WebSocket here, version 13; the dashboard is at /\n";
        return Err(plain(UPGRADE, words));
    }
    if !has(request, "sec-websocket-protocol", SUBPROTOCOL) {
        return Err(plain(BAD, &format!("the subprotocol {SUBPROTOCOL} must be offered\n")));
    }
    // Sixteen bytes, in base64.
    let Some(key) = header(request, "sec-websocket-key").filter(|key| key.len() == 24) else {
        return Err(plain(BAD, "no Sec-WebSocket-Key\n"));
    };
    let accept = websocket::accept(key);
    Ok(format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    ))
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

fn has_any(request: &Request<'_, '_>, name: &str) -> bool {
    all(request, name).next().is_some()
}

fn page(kind: &str, text: &str, policy: &str) -> Response {
    let length = text.len();
    let bytes = format!(
        "HTTP/1.1 {OK}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nContent-Security-Policy: {policy}\r\n\
         X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n\
         Cache-Control: no-cache\r\nConnection: close\r\n\r\n{text}"
    );
    Response { bytes: bytes.into_bytes(), upgraded: None }
}

fn plain(status: &str, text: &str) -> Response {
    let length = text.len();
    let bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {length}\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{text}"
    );
    Response { bytes: bytes.into_bytes(), upgraded: None }
}
