//! `lockkeeper top`, before a terminal.

mod common;

use common::{User, terminal::Terminal};
use lockkeeper_client::{Callbacks, Endpoint, Flags, Key, Options, Outer, Request, Session, Update};
use lockkeeper_core::{Mode, Name};
use rustix::process::{Signal, kill_process};
use std::sync::mpsc;

/// A session with the user's daemon, which runs.
fn session(user: &User) -> Session {
    let endpoint: Endpoint = format!("unix:{}", user.socket().display()).parse().expect("it is one");
    Session::open(&endpoint, Options::new("default"), Callbacks).expect("the daemon runs")
}

/// Asks for a lock, and waits for the answer.
fn request(session: &Session, name: &str, nested_in: Option<Key>) -> Key {
    let (sender, answer) = mpsc::channel();
    let request = Request {
        scope: vec![(Name::from(name), Mode::Exclusive)],
        flags: Flags::default(),
        nested_in: nested_in.map(Outer::Own),
        info: None,
    };
    let key = session.request(request, Box::new(move |update| _ = sender.send(update)));
    assert!(matches!(answer.recv(), Ok(Update::Granted { .. } | Update::Queued { .. })));
    key
}

fn top(user: &User) -> Terminal {
    let top = Terminal::start(&user.command(&["top"]));
    top.shows("q quit");
    top
}

/// The rows of the screen in which the texts are; `None` if one is missing. A screen is drawn in
/// several writes, so a test waits until all that it looks at is there.
fn rows<const N: usize>(screen: &str, texts: [&str; N]) -> Option<[usize; N]> {
    let rows = texts.map(|text| screen.lines().position(|line| line.contains(text)));
    rows.iter().all(Option::is_some).then(|| rows.map(Option::unwrap_or_default))
}

#[test]
fn who_waits_longest_is_first_and_the_queue_of_what_is_selected_below() {
    let user = User::new();
    let _idle = user.hold(&["--info", "keeper of idle", "idle"]);
    let holder = user.hold(&["--info", "nightly", "busy"]);
    let _waiter = user.start(&["--info", "patient", "--quiet", "busy"]);
    user.wait_for("busy", 1, 1);
    let mut top = top(&user);
    let pid = format!("pid {}  nightly", holder.pid().as_raw_nonzero());
    let screen = top.wait("the queue of the longest wait below all locks", |screen| {
        let list = ["lockkeeper: 2 held, 1 waiting", "LONGEST     HELD  NAME", "  nightly", "keeper of idle"];
        let queue = ["── busy: 1 held, 1 waiting", &pid, "patient"];
        let (Some([title, head, busy, idle]), Some([queue, held, waiting])) =
            (rows(screen, list), rows(screen, queue))
        else {
            return false;
        };
        (title, busy, idle) == (0, head + 1, head + 2) && queue > idle && waiting == held + 1
    });
    assert_eq!(screen.lines().count(), 24, "{screen}");
    // The next one, by either key, and back.
    top.press("j");
    top.shows("── idle: 1 held, 0 waiting");
    top.press("\x1b[A");
    top.shows("── busy: ");
    // Smaller, and larger.
    top.resize(10, 40);
    top.wait("a small screen", |screen| screen.contains("── busy") && screen.lines().count() <= 10);
    top.resize(2, 5);
    top.resize(30, 120);
    top.wait("a large screen", |screen| screen.contains("r release by force  ? help"));
    top.press("?");
    top.shows("Any key goes back");
    top.press("qq");
    assert!(top.ended().success());
    top.wait("the screen of before", |screen| !screen.contains("WAITING"));
}

#[test]
fn a_filter_and_another_order() {
    let user = User::new();
    let _holders = ["beta", "alpha", "gamma"].map(|name| user.hold(&[name]));
    let mut top = top(&user);
    top.shows("3 held");
    top.press("sss");
    top.wait("the order of names", |screen| {
        let found = rows(screen, [" alpha ", " beta ", " gamma ", "s sort (name)"]);
        found.is_some_and(|[alpha, beta, gamma, _]| (beta, gamma) == (alpha + 1, alpha + 2))
    });
    top.press("/GAM");
    top.shows("/GAM");
    top.press("\r");
    top.wait("what has the text", |screen| {
        rows(screen, ["1 with \"GAM\"", " gamma "]).is_some() && !screen.contains(" alpha ")
    });
    top.press("\x1b");
    top.shows(" alpha ");
    top.press("\x03");
    assert!(top.ended().success());
}

#[test]
fn a_lock_is_released_by_force_if_that_is_confirmed() {
    let user = User::new();
    let mut holder = user.hold(&["a"]);
    let top = top(&user);
    top.shows("1 held");
    top.press("r");
    top.shows("Break every lock of a?");
    top.press("n");
    top.shows("Nothing was broken");
    user.wait_for("a", 1, 0);
    top.press("ry");
    assert_eq!(holder.code(), 76);
    top.shows("0 held, 0 waiting");
}

/// The times went on, and nothing else.
#[test]
fn a_daemon_that_is_stopped_is_named_until_it_goes_on() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    let top = top(&user);
    top.shows("1 held");
    let daemon = user.daemon();
    kill_process(daemon, Signal::STOP).expect("it runs");
    top.shows(&format!("`kill -CONT {}` continues it", daemon.as_raw_nonzero()));
    kill_process(daemon, Signal::CONT).expect("it is stopped");
    top.shows("1 held, 0 waiting");
    top.press("q");
}

#[test]
fn a_deadlock_is_marked_and_its_cycle_shown() {
    let user = User::new();
    assert!(user.run(&["query"]).status.success());
    let (one, other) = (session(&user), session(&user));
    let (a, b) = (request(&one, "a", None), request(&other, "b", None));
    request(&one, "b", Some(a));
    request(&other, "a", Some(b));
    let top = top(&user);
    // After a second, the summary has the rate of grants in its midst.
    top.wait("the deadlock and its cycle", |screen| {
        let cycle = screen.split_once("deadlock: ").map_or("", |(_, cycle)| cycle);
        rows(screen, ["2 held, 2 waiting", ", 1 DEADLOCK"]).is_some()
            && (cycle.contains("waits for a") || cycle.contains("waits for b"))
    });
    assert!(top.colours().contains("\x1b[31"), "{:?}", top.colours());
    let inspected = user.run(&["inspect", "--table"]);
    let inspected = String::from_utf8_lossy(&inspected.stdout);
    for part in ["Deadlock: each of these", "waits for a\n", "waits for b\n", "lockkeeper release "] {
        assert!(inspected.contains(part), "{part}: {inspected}");
    }
    top.press("q");
}

#[test]
fn a_hundred_thousand_locks() {
    let user = User::new();
    assert!(user.run(&["query"]).status.success());
    let many = session(&user);
    let (sender, granted) = mpsc::channel();
    for number in 0..100_000 {
        let sender = sender.clone();
        let request = Request {
            scope: vec![(Name::from(&format!("lock/{number:06}")[..]), Mode::Exclusive)],
            flags: Flags::default(),
            nested_in: None,
            info: Some(format!("job {number}")),
        };
        many.request(request, Box::new(move |update| _ = sender.send(update)));
    }
    assert!((0..100_000).all(|_| matches!(granted.recv(), Ok(Update::Granted { .. }))));
    let mut top = top(&user);
    top.shows("100000 held");
    top.press("sss");
    top.shows("s sort (name)");
    top.press("G");
    top.shows("── lock/099999");
    top.press("/042042\r");
    top.shows("── lock/042042");
    top.press("q");
    assert!(top.ended().success());
}

#[test]
fn ctrl_z_gives_the_terminal_back_until_fg() {
    let user = User::new();
    let _holder = user.hold(&["a"]);
    let shell = user.shell();
    shell.press("lockkeeper top\r");
    shell.shows("1 held");
    shell.press("\x1a");
    let screen = shell.shows("Stopped");
    assert!(!screen.contains("WAITING"), "{screen}");
    shell.press("fg\r");
    shell.shows("WAITING");
    shell.press("q");
    // Before that, it would be top that reads the keys.
    shell.wait("a prompt", |screen| !screen.contains("WAITING") && screen.trim_end().ends_with("ready>"));
    shell.press("echo status $?\r");
    shell.shows("status 0");
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let user = User::new();
    let done = user.run(&["top"]);
    assert_eq!(done.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&done.stderr).contains("lockkeeper inspect"));
}
