//! Pages: which origins are let in, which buckets they have, and what their end means.

use crate::{
    client::Client,
    daemon::{Daemon, Setup},
    network::certify,
    temp::Temp,
    web,
};
use lockkeeper_server::{GoingAway, code};

const ORIGIN: &str = "https://example.com";

/// A connection of a page, which says nothing.
fn page(daemon: &Daemon, origin: &str) -> Client {
    page_with(daemon, &[("Origin", origin)])
}

fn page_with(daemon: &Daemon, headers: &[(&str, &str)]) -> Client {
    let add = |request: tungstenite::ClientRequestBuilder| {
        headers.iter().fold(request, |request, (name, value)| request.with_header(*name, *value))
    };
    Client::on_web(web::connect_with(Box::new(web::dial(daemon)), add).expect("a WebSocket"))
}

#[test]
fn pages_are_let_in_by_their_origin() {
    let let_in = |daemon: &Daemon, origin: &str| {
        page(daemon, origin).open_session(None).expect("it is let in");
    };
    let refused = |daemon: &Daemon, origin: &str| {
        // It is told as soon as it is connected, whatever it sends.
        let (code, words) = page(daemon, origin).goodbye();
        assert!(code == code::UNAUTHORIZED && words.contains("--allow-origin"), "{words}");
        assert!(words.contains(origin), "{words}");
    };
    let none = Daemon::on_network();
    refused(&none, ORIGIN);
    let origins = [ORIGIN, "http://localhost:3000"].map(String::from);
    let some = Daemon::on_network_with(|setup| setup.origins = origins.to_vec());
    for origin in &origins {
        let_in(&some, origin);
    }
    for origin in
        ["https://example.com.evil.test", "http://example.com", "https://example.com:8443", "null", ""]
    {
        refused(&some, origin);
    }
    let all = Daemon::on_network_with(|setup| setup.origins = vec!["*".into()]);
    let_in(&all, "https://anywhere.test");
    let asked = web::http(&none, &format!("GET /x HTTP/1.1\r\nOrigin: {ORIGIN}\r\n\r\n"));
    assert!(asked.starts_with("HTTP/1.1 403 ") && asked.contains("--allow-origin"), "{asked}");
}

fn per_origin(setup: &mut Setup) {
    setup.origins = vec!["*".into()];
    setup.bucket_per_origin = true;
}

#[test]
fn the_bucket_of_a_page_is_its_origin_and_a_partition_below_it() {
    let daemon = Daemon::on_network_with(per_origin);
    let hold = |mut client: Client| {
        client.open_session(None).expect("it is let in");
        client.hold("a");
        client
    };
    // Who holds the same name at the same time is in a bucket of its own.
    let mut first = hold(page(&daemon, ORIGIN));
    let mut others = [
        hold(page(&daemon, "https://other.example")),
        hold(page(&daemon, ORIGIN).in_bucket("https://top.example")),
        // Another page's word for the same bucket is a partition of its own.
        hold(page(&daemon, "https://evil.example").in_bucket(ORIGIN)),
        hold(Client::mute_on_network(&daemon)),
    ];
    // A program without a page says which bucket it wants: that of the page, too.
    let mut program = Client::mute_on_network(&daemon).in_bucket(ORIGIN);
    program.open_session(None).expect("it is let in");
    let mut same = page(&daemon, "HTTPS://example.COM");
    same.open_session(None).expect("it is let in");
    for client in [&mut program, &mut same] {
        client.wait_for("a");
    }
    let queue: Vec<_> = [(&first, true), (&program, false), (&same, false)]
        .map(|(client, held)| (client.id.clone(), held))
        .into();
    assert_eq!(first.queue_of("a"), queue);
    for client in &mut others {
        assert_eq!(client.queue_of("a"), [(client.id.clone(), true)]);
    }
    // It is the same bucket when it comes back.
    let another = page(&daemon, ORIGIN);
    first.reconnect_as(another);
    assert!(first.resume_here(None).expect("a welcome").resumed);
}

#[test]
fn an_origin_that_is_none_has_no_bucket() {
    let daemon = Daemon::on_network_with(per_origin);
    for origin in ["null", "https://a.example https://b.example"] {
        let (code, words) = page(&daemon, origin).goodbye();
        assert!(code == code::UNAUTHORIZED && words.contains("opaque"), "{words}");
    }
    let two = [("Origin", ORIGIN), ("Origin", "https://other.example")];
    assert_eq!(page_with(&daemon, &two).goodbye().0, code::UNAUTHORIZED);
}

/// Whether the lock of a client that closes its WebSocket with a status is free at once.
fn ends(daemon: &Daemon, mut client: Client, status: u16) -> bool {
    client.open_session(None).expect("it is let in");
    client.hold("a");
    client.close_with(status);
    let mut next = Client::open(daemon);
    let held = next.queue_of("a");
    if held.is_empty() {
        next.hold("a");
        next.bye();
        return true;
    }
    assert_eq!(held, [(client.id.clone(), true)]);
    let rid = next.end_session(&client.id);
    assert_eq!(next.outcome(rid), 1);
    false
}

#[test]
fn status_1001_ends_the_session_of_a_client_that_says_so() {
    let daemon = Daemon::on_network();
    let client = || Client::mute_on_network(&daemon);
    assert!(ends(&daemon, client().that_ends_with_1001(), 1001));
    assert!(!ends(&daemon, client().that_ends_with_1001(), 1000));
    assert!(!ends(&daemon, client(), 1001), "its Hello does not say so");
}

#[test]
fn a_proxy_that_goes_away_ends_no_session() {
    let proxied =
        |daemon: &Daemon, header| page_with(daemon, &[(header, "for=192.0.2.1")]).that_ends_with_1001();
    let daemon = Daemon::on_network();
    for header in ["Forwarded", "X-Forwarded-For", "Via"] {
        assert!(!ends(&daemon, proxied(&daemon, header), 1001), "{header}");
    }
    let always = Daemon::on_network_with(|setup| setup.going_away = GoingAway::Ends);
    assert!(ends(&always, proxied(&always, "Via"), 1001));
    let never = Daemon::on_network_with(|setup| setup.going_away = GoingAway::Ignored);
    assert!(!ends(&never, Client::mute_on_network(&never).that_ends_with_1001(), 1001));
}

#[test]
fn status_1001_over_tls_is_the_clients() {
    let daemon = Daemon::on_network_with(|setup| {
        let dir = setup.socket.parent().expect("it is in a directory");
        setup.tls = Some((dir.join("cert.pem"), dir.join("key.pem")));
        certify(dir);
    });
    let trusted = std::fs::read(daemon.path("cert.pem")).expect("it was written");
    let web = web::connect_with(web::tls(&daemon, &trusted), |request| request).expect("a WebSocket");
    assert!(ends(&daemon, Client::on_web(web).that_ends_with_1001(), 1001));
}

#[test]
fn status_1001_of_a_superseded_connection_ends_nothing() {
    let daemon = Daemon::on_network();
    let mut client = Client::mute_on_network(&daemon).that_ends_with_1001();
    client.open_session(None).expect("it is let in");
    let held = client.hold("a");
    let mut older = Client::mute_on_network(&daemon);
    std::mem::swap(older.web(), client.web());
    assert!(client.resume_here(None).expect("a welcome").resumed);
    // It was told to end, and answers as a browser does whose page is closed.
    let _ =
        older.web().close(Some(tungstenite::protocol::CloseFrame { code: 1001.into(), reason: "".into() }));
    while older.hear_or_end().is_some() {}
    client.release(held.rid);
}

#[test]
fn examples_are_served_on_request_and_may_connect() {
    let without = Daemon::on_network();
    assert!(web::get(&without, "/examples/").starts_with("HTTP/1.1 426 "));
    let daemon = Daemon::on_network_with(|setup| setup.examples = true);
    for (path, kind) in [
        ("/examples/", "text/html"),
        ("/examples/editor.html", "text/html"),
        ("/examples/sync.html", "text/html"),
        ("/examples/navigator.min.js", "text/javascript"),
        ("/examples/style.css", "text/css"),
    ] {
        let page = web::get(&daemon, path);
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.contains(&format!("Content-Type: {kind};")), "{page}");
        assert!(page.contains("Content-Security-Policy: default-src 'none'"), "{page}");
    }
    assert!(web::get(&daemon, "/examples/../healthz").starts_with("HTTP/1.1 426 "));
    let port = daemon.address().port();
    let connect = |host: &str, origin: &str| {
        let (host, stream) = (format!("{host}:{port}"), Box::new(web::dial(&daemon)));
        let web = web::connect_to(&host, stream, |request| request.with_header("Origin", origin));
        Client::on_web(web.expect("a WebSocket")).open_session(None).map(drop)
    };
    for host in ["127.0.0.1", "localhost"] {
        connect(host, &format!("http://{host}:{port}")).expect("it was served here");
    }
    // Neither a page of another port, nor one that had its name resolve to this machine.
    for (host, origin) in
        [("localhost", "http://localhost:1".into()), ("evil.test", format!("http://evil.test:{port}"))]
    {
        let (code, words) = connect(host, &origin).expect_err("it was not");
        assert!(code == code::UNAUTHORIZED && words.contains("--allow-origin"), "{words}");
    }
}

#[test]
fn the_dashboard_is_served_to_who_calls_this_machine_by_its_name() {
    let daemon = Daemon::on_network();
    let port = daemon.address().port();
    for (path, kind) in
        [("/", "text/html"), ("/dashboard.js", "text/javascript"), ("/dashboard.css", "text/css")]
    {
        let page = web::get(&daemon, path);
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.contains(&format!("Content-Type: {kind};")), "{page}");
        for part in ["default-src 'none'", "frame-ancestors 'none'", "nosniff", "no-referrer"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let host = format!("GET {path} HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n");
        assert!(web::http(&daemon, &host).starts_with("HTTP/1.1 421 "), "{path}");
    }
}

/// A page could have its own name mean the loopback, and read what a daemon at all addresses says
/// there.
#[test]
fn a_port_of_all_addresses_is_called_by_this_machines_name_on_the_loopback() {
    let mut daemon = Daemon::prepare(Temp::new());
    daemon.open_port_at("0.0.0.0:0");
    daemon.run();
    for path in ["/", "/healthz", "/metrics"] {
        let host = format!("GET {path} HTTP/1.1\r\nHost: evil.test\r\n\r\n");
        assert!(web::http(&daemon, &host).starts_with("HTTP/1.1 421 "), "{path}");
        assert!(web::get(&daemon, path).starts_with("HTTP/1.1 200 "), "{path}");
    }
}

/// A page that had its own name resolve to this machine is refused where no token is asked for;
/// elsewhere it has none.
#[test]
fn the_dashboard_may_connect_and_names_any_bucket() {
    let connect = |daemon: &Daemon, host: &str, origin: &str| connect_at(daemon, host, "/dashboard", origin);
    let open = Daemon::on_network_with(per_origin_only);
    let mut page = connect(&open, "localhost", "http://localhost:PORT").in_bucket("jobs");
    page.open_session(None).expect("it was served here");
    page.hold("a");
    let mut client = Client::mute_on_network(&open).in_bucket("jobs");
    client.open_session(None).expect("it is let in");
    assert_eq!(client.query(None).len(), 1, "it is the bucket that was named");
    for (host, origin) in
        [("localhost", "http://localhost:1"), ("evil.test", "http://evil.test:PORT"), ("localhost", "null")]
    {
        let (code, words) = connect(&open, host, origin).goodbye();
        assert!(code == code::UNAUTHORIZED && words.contains("--allow-origin"), "{words}");
    }
    let keys = Daemon::on_network_with(with_keys);
    let refused = connect(&keys, "locks.example", "https://locks.example:PORT").open_session(None);
    assert!(refused.is_err_and(|(_, words)| words.contains("token")), "it may ask, and needs a token");
    let other = connect(&keys, "locks.example", "https://other.example").goodbye();
    assert!(other.1.contains("--allow-origin"), "{}", other.1);
}

fn per_origin_only(setup: &mut Setup) {
    setup.bucket_per_origin = true;
}

fn with_keys(setup: &mut Setup) {
    let file = setup.socket.with_file_name("keys.json");
    let key = r#"{"keys":[{"kty":"oct","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}"#;
    std::fs::write(&file, key).expect("a file");
    setup.keys = Some(file);
}

/// A page at a path of a host. `PORT` is the daemon's, in the origin.
fn connect_at(daemon: &Daemon, host: &str, path: &str, origin: &str) -> Client {
    let port = daemon.address().port();
    let (host, origin) = (format!("{host}:{port}"), origin.replace("PORT", &port.to_string()));
    let add = |request: tungstenite::ClientRequestBuilder| request.with_header("Origin", origin);
    Client::on_web(web::connect_at(&host, path, Box::new(web::dial(daemon)), add).expect("a WebSocket"))
}

/// Behind a proxy that keeps the name of the host, pages of an application have the origin that the
/// daemon has.
#[test]
fn a_page_of_the_daemons_host_is_let_in_as_any_other() {
    for (daemon, host) in
        [(Daemon::on_network_with(with_keys), "app.example"), (Daemon::on_network(), "localhost")]
    {
        let (code, words) = connect_at(&daemon, host, "/", &format!("http://{host}:PORT")).goodbye();
        assert!(code == code::UNAUTHORIZED && words.contains("--allow-origin"), "{words}");
    }
    let examples = |setup: &mut Setup| {
        setup.examples = true;
        setup.bucket_per_origin = true;
    };
    let daemon = Daemon::on_network_with(examples);
    let mut page = connect_at(&daemon, "localhost", "/", "http://localhost:PORT").in_bucket("jobs");
    page.open_session(None).expect("it is an example");
    page.hold("a");
    let mut program = Client::mute_on_network(&daemon).in_bucket("jobs");
    program.open_session(None).expect("it is let in");
    assert!(program.query(None).is_empty(), "the bucket is not the page's word");
}
