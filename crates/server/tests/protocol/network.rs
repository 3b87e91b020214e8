//! The port: WebSockets, TLS, origins, health and counts.

use crate::{
    client::Client,
    daemon::{Daemon, in_a_fleet},
    web,
};
use lockkeeper_core::Cause;
use lockkeeper_server::code;
use lockkeeper_wire::v2::{EndFlags, Flags, ToClient, ToServer};
use std::time::Duration;

#[test]
fn locks_are_asked_for_had_and_released() {
    let daemon = Daemon::on_network();
    let (mut one, mut other, mut local) =
        (Client::on_network(&daemon), Client::on_network(&daemon), Client::open(&daemon));
    let held = one.hold("a");
    let (second, third) = (other.wait_for("a"), local.wait_for("a"));
    one.release(held.rid);
    other.granted(second.rid);
    let thief = one.request_with("a", Flags { steal: true, ..Flags::default() });
    assert_eq!(other.broken(second.rid), Cause::Stolen);
    one.granted(thief);
    one.release(thief);
    local.granted(third.rid);
    let name = "n".repeat(60_000);
    for _ in 0..5 {
        let long = one.request(&name);
        one.granted(long);
        assert_eq!(one.query(Some(name.as_bytes()))[0].name, name.as_bytes());
        one.release(long);
    }
}

#[test]
fn health_is_told_and_what_is_no_websocket_is_refused_in_words() {
    let daemon = Daemon::on_network();
    let well = web::get(&daemon, "/healthz");
    assert!(well.starts_with("HTTP/1.1 200 OK\r\n") && well.ends_with("\r\n\r\nok\n"), "{well}");
    let page = web::get(&daemon, "/elsewhere");
    assert!(page.starts_with("HTTP/1.1 426 ") && page.contains("WebSocket"), "{page}");
    let post = web::http(&daemon, "POST /healthz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
    assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
    let long = web::http(&daemon, &format!("GET / HTTP/1.1\r\nCookie: {}\r\n\r\n", "c".repeat(20_000)));
    assert!(long.starts_with("HTTP/1.1 431 "), "{long}");
    let many = web::http(&daemon, &format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100)));
    assert!(many.starts_with("HTTP/1.1 431 "), "{many}");
    let nonsense = web::http(&daemon, "\x01\x02 nonsense\r\n\r\n");
    assert!(nonsense.starts_with("HTTP/1.1 400 "), "{nonsense}");
    let unoffered = web::http(
        &daemon,
        "GET / HTTP/1.1\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: chat, superchat\r\n\r\n",
    );
    assert!(unoffered.starts_with("HTTP/1.1 400 ") && unoffered.contains("lockkeeper.v2"), "{unoffered}");
}

#[test]
fn tls_is_spoken_with_the_certificate_there_is() {
    let daemon = Daemon::on_network_with(|setup| {
        let dir = setup.socket.parent().expect("it is in a directory");
        setup.tls = Some((dir.join("cert.pem"), dir.join("key.pem")));
        certify(dir);
    });
    let tls = |daemon: &Daemon| {
        let path = daemon.path("cert.pem");
        let trusted = std::fs::read(path).expect("it was written");
        web::connect_with(web::tls(daemon, &trusted), |request| request)
    };
    let mut client = Client::on_web(tls(&daemon).expect("a WebSocket"));
    client.open_session(None).expect("a welcome");
    let held = client.hold(&"long".repeat(10_000));
    client.release(held.rid);
    let before = std::fs::read(daemon.path("cert.pem")).expect("it was written");

    // A bad file does not take the place of a good one.
    std::fs::write(daemon.path("cert.pem"), "no certificate").expect("it is ours");
    daemon.reload();
    std::fs::write(daemon.path("good.pem"), &before).expect("it is ours");
    for _ in 0..3 {
        web::connect_with(web::tls(&daemon, &before), |request| request).expect("the old one stays");
    }
    certify(&daemon.path(""));
    daemon.reload();
    let after = std::fs::read(daemon.path("cert.pem")).expect("it was written");
    while !web::trusts(&daemon, &after) {}
    assert!(!web::trusts(&daemon, &before), "the old certificate is gone");
    client.ping();
}

/// Writes a new certificate and its key.
pub(crate) fn certify(dir: &std::path::Path) {
    let names = vec!["localhost".to_string()];
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(names).expect("a certificate");
    std::fs::write(dir.join("cert.pem"), cert.pem()).expect("it is ours");
    std::fs::write(dir.join("key.pem"), signing_key.serialize_pem()).expect("it is ours");
}

#[test]
fn what_happens_is_counted_without_names() {
    let daemon = Daemon::on_network();
    let (mut one, mut other) = (Client::on_network(&daemon), Client::on_network(&daemon));
    let (held, kept) = (one.hold("secret name"), one.hold("b"));
    let (waiting, given_up) = (other.wait_for("secret name"), other.wait_for("b"));
    let seen = web::counts(&daemon);
    assert_eq!(
        (seen["lockkeeper_held"], seen["lockkeeper_pending"], seen["lockkeeper_sessions"]),
        (2.0, 2.0, 2.0)
    );
    one.release(held.rid);
    other.granted(waiting.rid);
    let flags = EndFlags { timed_out: true, ..EndFlags::default() };
    other.say(&ToServer::Release { ack: 0, rid: given_up.rid, flags });
    assert_eq!(other.hear(), ToClient::Released { rid: given_up.rid });
    let thief = other.request_with("b", Flags { steal: true, ..Flags::default() });
    one.broken(kept.rid);
    other.granted(thief);
    assert!(one.resume(&daemon).resumed);
    let rid = one.request("-reserved");
    assert_eq!(one.refused(rid).0, code::NOT_SUPPORTED);
    one.bye();
    other.bye();
    let seen = web::counts(&daemon);
    for (name, value) in [
        ("held", 0.0),
        ("pending", 0.0),
        ("sessions", 0.0),
        ("grants_total", 4.0),
        ("steals_total", 1.0),
        ("aborts_total", 1.0),
        ("timeouts_total", 1.0),
        ("resumes_total", 1.0),
        ("losses_total", 2.0),
        ("refused_total", 1.0),
        ("wait_seconds_count", 4.0),
        ("wait_seconds_bucket{le=\"+Inf\"}", 4.0),
        ("hold_seconds_count", 1.0),
    ] {
        assert_eq!(seen[&format!("lockkeeper_{name}")], value, "{name}");
    }
    assert!(!web::get(&daemon, "/metrics").contains("secret"));
}

#[test]
fn locks_that_are_lost_are_counted() {
    let daemon = Daemon::on_network_with(|setup| setup.ttl = Duration::from_secs(1));
    let (mut gone, mut next) = (Client::on_network(&daemon), Client::open(&daemon));
    let mine = gone.request("a");
    gone.granted(mine);
    drop(gone);
    next.get("a");
    assert_eq!(web::counts(&daemon)["lockkeeper_losses_total"], 1.0);
}

#[test]
fn the_dashboard_shows_what_is_counted() {
    let daemon = Daemon::on_network();
    let seen = web::counts(&daemon);
    let dashboard = include_str!("../../../../docs/grafana.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).expect("it is JSON");
    let panels = dashboard["panels"].as_array().expect("it has panels");
    let mut shown = std::collections::BTreeSet::new();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().expect("each has targets")) {
        let query = target["expr"].as_str().expect("a query is text");
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> = words.filter(|word| word.starts_with("lockkeeper_")).collect();
        assert!(!names.is_empty(), "{query}");
        for name in names {
            assert!(seen.keys().any(|known| known.split('{').next() == Some(name)), "{name} is not counted");
            shown
                .insert(name.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count"));
        }
    }
    let metrics = web::get(daemon.leader(), "/metrics");
    let counted = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    // What only a fleet has is not shown.
    let of_fleet = |name: &str| name.starts_with("lockkeeper_fleet_");
    for name in counted
        .filter(|name| name.starts_with("lockkeeper_") && *name != "lockkeeper_build_info" && !of_fleet(name))
    {
        assert!(shown.contains(name), "{name} is not shown");
    }
}

#[test]
fn the_alerts_are_about_what_is_counted_and_each_is_tested() {
    let seen = web::counts(&Daemon::on_network());
    let rules = include_str!("../../../../docs/prometheus/lockkeeper.rules.yml");
    let tests = include_str!("../../../../docs/prometheus/test.yml");
    let values = |key| rules.lines().filter_map(move |line| line.trim_start().strip_prefix(key));
    for query in values("expr: ") {
        let mut words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let counted = |name: &str| seen.keys().any(|known| known.split('{').next() == Some(name));
        assert!(words.all(|word| !word.starts_with("lockkeeper_") || counted(word)), "{query}");
    }
    let mut alerts = values("- alert: ").peekable();
    assert!(alerts.peek().is_some());
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts:")), "{alert} is not tested");
    }
}

#[test]
fn buckets_that_nobody_uses_make_room_for_others() {
    // The state does it, which is the same there; and 10,000 sessions take a while, one after the
    // other.
    if in_a_fleet() {
        return;
    }
    let daemon = Daemon::on_network();
    let mut token = 0;
    for number in 0..10_500 {
        let mut client = Client::open_in(&daemon, &format!("bucket-{number}"));
        if number % 500 == 0 {
            // A bucket that is there again goes on with its tokens.
            let mut same = Client::open_in(&daemon, "same");
            let rid = same.request("a");
            let next = same.granted(rid);
            assert!(next > token);
            token = next;
        }
        client.bye();
    }
}

#[test]
fn limits_are_named_when_they_are_met() {
    let daemon = Daemon::on_network_with(|setup| {
        setup.limits.requests_per_client = 2;
        setup.limits.requests = 3;
        setup.limits.clients = 2;
    });
    let (mut one, mut other) = (Client::on_network(&daemon), Client::on_network(&daemon));
    one.hold("a");
    one.hold("b");
    let rid = one.request("c");
    let (code, words) = one.refused(rid);
    assert!(
        code == code::LIMIT && words.contains('2') && words.ends_with("(max-requests-per-client)"),
        "{words}"
    );
    other.hold("c");
    let rid = other.request("d");
    let (code, words) = other.refused(rid);
    assert!(code == code::LIMIT && words.contains('3') && words.ends_with("(max-requests)"), "{words}");
    let (code, words) = Client::mute_on_network(&daemon).open_session(None).expect_err("two are there");
    assert!(code == code::LIMIT && words.ends_with("2 sessions (max-clients)"), "{words}");
}

/// A client of the port could open all sessions, and keep out the daemon's own user.
#[test]
fn the_network_leaves_some_sessions_to_the_machine() {
    // Where daemons share a log, all clients have leases.
    if in_a_fleet() {
        return;
    }
    let daemon = Daemon::on_network_with(|setup| setup.limits.clients = 8);
    let _seven: Vec<_> = (0..7).map(|_| Client::on_network(&daemon)).collect();
    let (code, words) = Client::mute_on_network(&daemon).open_session(None).expect_err("seven are there");
    assert!(code == code::LIMIT && words.ends_with("7 sessions (max-clients)"), "{words}");
    Client::open(&daemon).hold("a");
}
