//! Sessions on the network: they outlast a connection, not their client's silence.

use crate::{
    client::{Client, Known},
    daemon::Daemon,
    web,
};
use lockkeeper_core::{Cause, Mode};
use lockkeeper_server::code;
use lockkeeper_wire::{Claim, Flags, ToClient, ToServer};
use std::time::Duration;

/// So short that nobody need wait for it.
const SHORT: Duration = Duration::from_millis(50);

fn grant(known: &Known) -> (u64, [u8; 16]) {
    let Claim::Held { token, receipt } = known.claim else { panic!("it was held") };
    (token, receipt)
}

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
fn a_connection_that_is_cut_is_resumed_with_its_locks_and_places() {
    let daemon = Daemon::on_network();
    let [mut holder, mut first, mut second] = [(); 3].map(|()| Client::on_network(&daemon));
    let held = holder.hold("a");
    let (next, last) = (first.wait_for("a"), second.wait_for("a"));
    for _ in 0..3 {
        assert!(first.reconnect(&daemon));
        first.reclaim(&next);
        assert_eq!(Some(first.queued(next.rid)), ticket(&next), "the place is the same");
        first.say(&ToServer::Ready);
        assert!(holder.reconnect(&daemon));
        holder.reclaim(&held);
        assert_eq!(holder.granted_with_receipt(held.rid), grant(&held), "the grant is the same");
        holder.say(&ToServer::Ready);
    }
    holder.release(held.rid);
    first.granted(next.rid);
    first.release(next.rid);
    second.granted(last.rid);
}

fn ticket(known: &Known) -> Option<u64> {
    let Claim::Waiting { ticket } = known.claim else { panic!("it waited") };
    ticket
}

#[test]
fn what_happened_while_a_client_was_cut_off_it_hears_when_it_is_back() {
    let daemon = Daemon::on_network();
    let (mut away, mut other) = (Client::on_network(&daemon), Client::on_network(&daemon));
    let (mine, theirs) = (away.hold("stolen"), other.hold("granted"));
    let waiting = away.wait_for("granted");
    let given_up = away.hold("given up");
    let behind = other.wait_for("given up");
    let (id, secret) = (away.id.clone(), away.secret);
    drop(away);
    let thief = other.request_with("stolen", Flags { steal: true, ..Flags::default() });
    other.granted(thief);
    other.release(theirs.rid);

    let mut back = Client::mute_on_network(&daemon);
    assert!(back.hello("default", Some((&id, secret))));
    back.reclaim(&mine);
    assert_eq!(back.broken(mine.rid), Cause::Stolen);
    back.reclaim(&waiting);
    let token = back.granted(waiting.rid);
    assert!(token > grant(&mine).0);
    // It does not speak of what it gave up.
    back.say(&ToServer::Ready);
    other.granted(behind.rid);
    assert_eq!(given_up.scope, [("given up", Mode::Exclusive)]);
}

#[test]
fn of_two_connections_that_fight_for_a_session_the_last_has_it() {
    let daemon = Daemon::on_network();
    let mut one = Client::on_network(&daemon);
    let held = one.hold("a");
    let (id, secret) = (one.id.clone(), one.secret);
    for _ in 0..10 {
        let mut other = Client::mute_on_network(&daemon);
        assert!(other.hello("default", Some((&id, secret))), "the daemon believes the old one to be alive");
        // Nothing that the old one says counts any more.
        let mut bytes = Vec::new();
        ToServer::Release { rid: held.rid }.encode(&mut bytes);
        let _ = one.web().send(tungstenite::Message::Binary(bytes.into()));
        assert_eq!(one.hear_or_end(), None, "the old one is cut");
        other.reclaim(&held);
        assert_eq!(other.granted_with_receipt(held.rid), grant(&held));
        other.say(&ToServer::Ready);
        one = other;
    }
    assert_eq!(Client::open(&daemon).queue_of("a"), [(id, true)]);
}

#[test]
fn a_session_is_resumed_by_its_secret_in_its_bucket_and_where_it_was_opened() {
    let daemon = Daemon::on_network();
    let (mut web, mut local) = (Client::on_network(&daemon), Client::open(&daemon));
    let held = web.hold("a");
    local.hold("b");
    let (id, secret) = (web.id.clone(), web.secret);
    let mut wrong = secret;
    wrong[15] ^= 1;
    for (bucket, secret) in [("default", wrong), ("other", secret)] {
        assert!(!Client::mute_on_network(&daemon).hello(bucket, Some((&id, secret))));
    }
    assert!(!Client::mute(&daemon).hello("default", Some((&id, secret))));
    assert!(!Client::mute_on_network(&daemon).hello("default", Some((&local.id, local.secret))));
    web.release(held.rid);
    local.ping();
}

#[test]
fn who_is_not_heard_for_the_ttl_has_lost_its_locks() {
    for dropped in [true, false] {
        let daemon = Daemon::on_network_with(|config| config.ttl = SHORT);
        let (mut silent, mut next) = (Client::on_network(&daemon), Client::open(&daemon));
        let mine = silent.request("a");
        silent.granted(mine);
        let (id, secret) = (silent.id.clone(), silent.secret);
        let mut silent = Some(silent).filter(|_| !dropped);
        let theirs = next.request("a");
        // It had to wait, or had not even to, on a slow machine.
        while !matches!(next.hear(), ToClient::Granted { rid, .. } if rid == theirs) {}
        if let Some(silent) = &mut silent {
            let (code, words) = silent.goodbye();
            assert_eq!(code, code::OUT_OF_ORDER);
            assert!(words.contains("ping"), "{words}");
        }
        assert!(
            !Client::mute_on_network(&daemon).hello("default", Some((&id, secret))),
            "the session is over"
        );
    }
}

#[test]
fn who_says_ping_keeps_its_locks() {
    let daemon = Daemon::on_network_with(|config| config.ttl = Duration::from_secs(2));
    let (mut client, mut local) = (Client::on_network(&daemon), Client::open(&daemon));
    let held = client.hold("a");
    let waiting = local.wait_for("a");
    // Another one, who says nothing, shows when the time has passed twice over.
    for _ in 0..2 {
        let mut silent = Client::on_network(&daemon);
        let silent = std::thread::spawn(move || silent.goodbye());
        while !silent.is_finished() {
            client.ping();
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(silent.join().expect("it hears").0, code::OUT_OF_ORDER);
    }
    client.release(held.rid);
    local.granted(waiting.rid);
}

#[test]
fn bye_ends_the_session_at_once() {
    let daemon = Daemon::on_network();
    let (mut client, mut next) = (Client::on_network(&daemon), Client::on_network(&daemon));
    client.hold("a");
    let waiting = next.wait_for("a");
    client.say(&ToServer::Bye);
    next.granted(waiting.rid);
    assert_eq!(client.hear_or_end(), None);
    assert!(!client.reconnect(&daemon));
}

#[test]
fn sessions_outlive_a_daemon_that_is_killed_or_stops() {
    for stop in [Daemon::kill, Daemon::stop] {
        let mut daemon = Daemon::on_network();
        let [mut holder, mut first, mut second] = [(); 3].map(|()| Client::on_network(&daemon));
        let held = holder.hold("a");
        let (next, last) = (first.wait_for("a"), second.wait_for("a"));
        stop(&mut daemon);
        daemon.run();
        let mut newcomer = Client::on_network(&daemon);
        let theirs = newcomer.request("a");
        for (client, known) in [(&mut second, &last), (&mut holder, &held), (&mut first, &next)] {
            assert!(client.reconnect(&daemon));
            client.reclaim(known);
            client.say(&ToServer::Ready);
        }
        assert_eq!(holder.granted_with_receipt(held.rid), grant(&held));
        assert_eq!(Some(first.queued(next.rid)), ticket(&next));
        assert_eq!(Some(second.queued(last.rid)), ticket(&last));
        newcomer.queued(theirs);
        holder.release(held.rid);
        for (client, rid) in [(&mut first, next.rid), (&mut second, last.rid), (&mut newcomer, theirs)] {
            client.granted(rid);
            client.release(rid);
        }
    }
}

#[test]
fn who_does_not_come_back_to_a_new_daemon_is_not_waited_for_for_ever() {
    for stop in [Daemon::kill, Daemon::stop] {
        let mut daemon = Daemon::on_network();
        let mut gone = Client::on_network(&daemon);
        gone.hold("a");
        // The ttl that the clients were told is that of the daemon that is killed.
        stop(&mut daemon);
        daemon.config.ttl = SHORT;
        shorten_ttl(&daemon);
        daemon.run();
        let mut next = Client::open(&daemon);
        let theirs = next.request("a");
        while !matches!(next.hear(), ToClient::Granted { rid, .. } if rid == theirs) {}
        assert!(!gone.reconnect(&daemon));
    }
}

/// Has the last life of the daemon have told its clients a short ttl.
fn shorten_ttl(daemon: &Daemon) {
    let path = daemon.config.state_dir.join("sessions");
    let text = std::fs::read_to_string(&path).expect("there are sessions");
    let (first, rest) = text.split_once('\n').expect("the ttl comes first");
    assert_eq!(first, "ttl 600000");
    std::fs::write(&path, format!("ttl 1\n{rest}")).expect("it is ours");
}

#[test]
fn a_daemon_with_a_shorter_ttl_waits_as_long_as_the_clients_believe() {
    let mut daemon = Daemon::on_network();
    let mut holder = Client::on_network(&daemon);
    let held = holder.hold("a");
    daemon.kill();
    daemon.config.ttl = Duration::from_millis(1);
    daemon.run();
    let mut other = Client::open(&daemon);
    for _ in 0..20 {
        let question = other.next_rid();
        other.say(&ToServer::Query { rid: question, name: None, deadlocks: false });
        assert_eq!(other.refused(question).0, code::GRACE);
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(held);
}

#[test]
fn health_is_told_and_what_is_no_websocket_is_refused_in_words() {
    let mut daemon = Daemon::on_network();
    let well = web::get(&daemon, "/healthz");
    assert!(well.starts_with("HTTP/1.1 200 OK\r\n") && well.ends_with("\r\n\r\nok\n"), "{well}");
    let page = web::get(&daemon, "/");
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

    let mut client = Client::on_network(&daemon);
    client.hold("a");
    daemon.kill();
    daemon.run();
    let ill = web::get(&daemon, "/healthz");
    assert!(ill.starts_with("HTTP/1.1 503 ") && ill.contains("it waits for 1 session"), "{ill}");
    assert!(client.reconnect(&daemon));
    client.say(&ToServer::Ready);
    client.ping();
    assert!(web::get(&daemon, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn pages_are_let_in_by_their_origin() {
    let connect = |daemon: &Daemon, origin: &str| {
        let stream = Box::new(web::dial(daemon));
        web::connect_with(stream, |request| request.with_header("Origin", origin)).map(drop)
    };
    let none = Daemon::on_network();
    let (status, words) = connect(&none, "https://example.com").expect_err("no page is let in");
    assert!(status == 403 && words.contains("--allow-origin"), "{status} {words}");
    let origins = ["https://example.com", "http://localhost:3000"].map(String::from);
    let some = Daemon::on_network_with(|config| {
        config.listen.as_mut().expect("it is on the network").origins = origins.to_vec();
    });
    for origin in &origins {
        connect(&some, origin).expect("it is on the list");
    }
    for origin in
        ["https://example.com.evil.test", "http://example.com", "https://example.com:8443", "null", ""]
    {
        assert_eq!(connect(&some, origin).expect_err("it is not").0, 403, "{origin}");
    }
    let all = Daemon::on_network_with(|config| {
        config.listen.as_mut().expect("it is on the network").origins = vec!["*".into()];
    });
    connect(&all, "https://anywhere.test").expect("all are let in");
}

#[test]
fn tls_is_spoken_with_the_certificate_there_is() {
    let daemon = Daemon::on_network_with(|config| {
        let listen = config.listen.as_mut().expect("it is on the network");
        let dir = config.socket.parent().expect("it is in a directory");
        listen.tls = Some((dir.join("cert.pem"), dir.join("key.pem")));
        certify(dir);
    });
    let tls = |daemon: &Daemon| {
        let path = daemon.path("cert.pem");
        let trusted = std::fs::read(path).expect("it was written");
        web::connect_with(web::tls(daemon, &trusted), |request| request)
    };
    let mut client = Client::on_line(tls(&daemon).expect("a WebSocket"));
    assert!(!client.hello("default", None));
    let name: &'static str = "long".repeat(10_000).leak();
    let held = client.hold(name);
    client.release(held.rid);
    let before = std::fs::read(daemon.path("cert.pem")).expect("it was written");

    // A bad file does not take the place of a good one.
    std::fs::write(daemon.path("cert.pem"), "no certificate").expect("it is ours");
    daemon.listen().reload.notify_one();
    std::fs::write(daemon.path("good.pem"), &before).expect("it is ours");
    for _ in 0..3 {
        web::connect_with(web::tls(&daemon, &before), |request| request).expect("the old one stays");
    }
    certify(&daemon.path(""));
    daemon.listen().reload.notify_one();
    let after = std::fs::read(daemon.path("cert.pem")).expect("it was written");
    while !web::trusts(&daemon, &after) {}
    assert!(!web::trusts(&daemon, &before), "the old certificate is gone");
    client.ping();
}

/// Writes a new certificate and its key.
fn certify(dir: &std::path::Path) {
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
    let seen = counts(&daemon);
    assert_eq!(
        (seen["lockkeeper_held"], seen["lockkeeper_pending"], seen["lockkeeper_sessions"]),
        (2.0, 2.0, 2.0)
    );
    one.release(held.rid);
    other.granted(waiting.rid);
    other.say(&ToServer::Abort { rid: given_up.rid, timed_out: true });
    assert_eq!(other.hear(), ToClient::Aborted { rid: given_up.rid });
    let thief = other.request_with("b", Flags { steal: true, ..Flags::default() });
    one.broken(kept.rid);
    other.granted(thief);
    assert!(one.reconnect(&daemon));
    one.say(&ToServer::Ready);
    web::say(one.web(), vec![0xc1]);
    assert_eq!(one.goodbye().0, code::MALFORMED);
    other.say(&ToServer::Bye);
    assert_eq!(other.hear_or_end(), None);
    let seen = counts(&daemon);
    for (name, value) in [
        ("held", 0.0),
        ("pending", 0.0),
        ("sessions", 0.0),
        ("grants_total", 4.0),
        ("steals_total", 1.0),
        ("aborts_total", 1.0),
        ("timeouts_total", 1.0),
        ("resumes_total", 1.0),
        ("losses_total", 0.0),
        ("refused_frames_total", 1.0),
        ("wait_seconds_count", 4.0),
        ("wait_seconds_bucket{le=\"+Inf\"}", 4.0),
        ("hold_seconds_count", 4.0),
    ] {
        assert_eq!(seen[&format!("lockkeeper_{name}")], value, "{name}");
    }
    assert!(!web::get(&daemon, "/metrics").contains("secret"));
}

#[test]
fn locks_that_are_lost_are_counted() {
    let daemon = Daemon::on_network_with(|config| config.ttl = SHORT);
    let (mut gone, mut next) = (Client::on_network(&daemon), Client::open(&daemon));
    let mine = gone.request("a");
    gone.granted(mine);
    drop(gone);
    let theirs = next.request("a");
    while !matches!(next.hear(), ToClient::Granted { rid, .. } if rid == theirs) {}
    assert_eq!(counts(&daemon)["lockkeeper_losses_total"], 1.0);
}

#[test]
fn the_dashboard_shows_what_is_counted() {
    let daemon = Daemon::on_network();
    let seen = counts(&daemon);
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
    let metrics = web::get(&daemon, "/metrics");
    for name in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(shown.contains(name), "{name} is not shown");
    }
}

/// The counts, by their names.
fn counts(daemon: &Daemon) -> std::collections::HashMap<String, f64> {
    let answer = web::get(daemon, "/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").expect("it has a head");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let count = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    lines.map(|line| count(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

#[test]
fn after_a_crash_of_the_machine_nobody_is_served_before_all_have_given_up() {
    let mut daemon = Daemon::on_network();
    let mut lost = Client::on_network(&daemon);
    lost.hold("a");
    daemon.kill();
    // What was not on the disk yet is gone, and so is the former life of the machine.
    let dir = &daemon.config.state_dir;
    std::fs::write(dir.join("sessions"), "").expect("it is ours");
    let note = std::fs::read_to_string(dir.join("network")).expect("it is noted where it served");
    let (boot, ttl) = note.trim().split_once(' ').expect("a boot and a ttl");
    assert_eq!(ttl, "600000");
    std::fs::write(dir.join("network"), note.replace(boot, "another-boot")).expect("it is ours");
    daemon.run();
    let mut other = Client::open(&daemon);
    let question = other.next_rid();
    other.say(&ToServer::Query { rid: question, name: None, deadlocks: false });
    assert_eq!(other.refused(question).0, code::GRACE);
    assert!(!lost.reconnect(&daemon), "it hears that its locks are lost");
    daemon.kill();
    // And once more: it has not waited long enough yet. With a shorter ttl it has.
    let note = std::fs::read_to_string(daemon.config.state_dir.join("network")).expect("it is still noted");
    assert!(note.starts_with("another-boot "), "{note}");
    std::fs::write(daemon.config.state_dir.join("network"), "another-boot 1").expect("it is ours");
    std::fs::write(daemon.config.state_dir.join("sessions"), "").expect("it is ours");
    daemon.config.ttl = SHORT;
    daemon.run();
    let mut next = Client::open(&daemon);
    let theirs = next.request("a");
    next.granted(theirs);
    let note = std::fs::read_to_string(daemon.config.state_dir.join("network")).expect("it is noted");
    assert!(note.starts_with(boot), "{note}");
}

#[test]
fn buckets_that_nobody_uses_make_room_for_others() {
    let daemon = Daemon::on_network();
    let mut token = 0;
    for number in 0..10_500 {
        let mut client = Client::mute(&daemon);
        assert!(!client.hello(&format!("bucket-{number}"), None));
        if number % 500 == 0 {
            // A bucket that is there again goes on with its tokens.
            let mut same = Client::open_in(&daemon, "same");
            let rid = same.request("a");
            let next = same.granted(rid);
            assert!(next > token);
            token = next;
        }
        client.say(&ToServer::Bye);
        assert_eq!(client.hear_or_end(), None);
    }
}

#[test]
fn limits_are_named_when_they_are_met() {
    let daemon = Daemon::on_network_with(|config| {
        config.limits.requests_per_client = 2;
        config.limits.requests = 3;
        config.limits.clients = 2;
    });
    let (mut one, mut other) = (Client::on_network(&daemon), Client::on_network(&daemon));
    one.hold("a");
    one.hold("b");
    let rid = one.request("c");
    let (code, words) = one.refused(rid);
    assert!(code == code::LIMIT && words.contains('2') && words.contains("client"), "{words}");
    other.hold("c");
    let rid = other.request("d");
    let (code, words) = other.refused(rid);
    assert!(code == code::LIMIT && words.contains('3'), "{words}");
    let (code, words) =
        Client::mute_on_network(&daemon).hello_with("default", None, None).expect_err("two are there");
    assert!(code == code::LIMIT && words.contains("2 live clients"), "{words}");
}

#[test]
fn nobody_on_the_network_has_an_heir() {
    let daemon = Daemon::on_network();
    let mut client = Client::on_network(&daemon);
    client.say(&ToServer::Heir { pid: std::process::id() });
    assert_eq!(client.goodbye().0, code::OUT_OF_ORDER);
}
