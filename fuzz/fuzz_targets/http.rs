//! The HTTP request that a WebSocket begins with: any bytes get one well-formed response, which
//! depends on the head of the request alone.
//!
//! The first byte of an input chooses the allowed origins; the others are the request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_server::fuzzing::respond;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, request)) = bytes.split_first() else { return };
    let origins: &[&str] = match choice % 3 {
        0 => &[],
        1 => &["https://a.example"],
        _ => &["*"],
    };
    let origins: Vec<String> = origins.iter().map(|origin| (*origin).to_owned()).collect();
    let (response, open, length) = respond(request, &origins);
    check(&response);
    let head = &request[..length];
    assert_eq!(
        respond(head, &origins),
        (response.clone(), open, length),
        "what follows the head does not matter"
    );
    assert!(!open || response.starts_with(b"HTTP/1.1 101 "));
    if open {
        let allowed = |origin: &str| origins.iter().any(|allowed| allowed == "*" || allowed == origin);
        assert!(
            values(head, "origin").iter().all(|origin| allowed(origin)) || is_dashboard(head),
            "a page of another origin is let in"
        );
        assert_eq!(values(head, "sec-websocket-key")[0].len(), 24);
        assert!(values(head, "sec-websocket-protocol").concat().contains("lockkeeper.v"), "another protocol");
    }
});

/// Whether a page that this machine served, by a name of its loopback (or what begins like one),
/// asks for the dashboard's WebSocket.
fn is_dashboard(head: &[u8]) -> bool {
    let line = String::from_utf8_lossy(head).trim_start().lines().next().unwrap_or_default().to_owned();
    let path = line.split(' ').nth(1).and_then(|path| path.split('?').next());
    let (origins, hosts) = (values(head, "origin"), values(head, "host"));
    let [origin] = &origins[..] else { return false };
    let Some(host) = hosts.first().filter(|host| origin.ends_with(&format!("://{host}"))) else {
        return false;
    };
    path == Some("/dashboard")
        && ["localhost", "127.", "[", ":", "0"].iter().any(|name| host.starts_with(name))
}

/// The values of a header in the head of a request, in lower case. It is read line by line, unlike
/// in what is tested.
fn values(head: &[u8], name: &str) -> Vec<String> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let headers = head.lines().filter_map(|line| line.split_once(':'));
    headers
        .filter(|(found, _)| *found == name)
        .map(|(_, value)| value.trim_matches([' ', '\t']).to_owned())
        .collect()
}

/// A status line, headers on lines of their own, and a body as long as they say.
fn check(response: &[u8]) {
    let end = response.windows(4).position(|end| end == b"\r\n\r\n").expect("a head ends with an empty line");
    let head = str::from_utf8(&response[..end]).expect("a head is text");
    let body = &response[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).expect("a status line");
    assert!(status.len() > 4 && status.as_bytes()[..3].iter().all(u8::is_ascii_digit), "{status}");
    let mut length = 0;
    for line in lines {
        let (name, value) = line.split_once(": ").expect("a header has a name and a value");
        assert!(name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-'), "{name}");
        assert!(!value.contains(['\r', '\n']), "{value}");
        if name == "Content-Length" {
            length = value.parse().expect("it is a number");
        }
    }
    // Who is refused after the handshake is told so in a frame.
    if !status.starts_with("101 ") {
        assert_eq!(body.len(), length);
    }
}
