//! `lockkeeper state`.

mod common;

use common::User;
use std::{fs, process::Output};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn a_state_is_checked_while_a_daemon_has_it_and_after() {
    let user = User::new();
    let holder = user.hold(&["a"]);
    let dir = user.state_dir();
    let dir = dir.to_str().expect("it is text");
    let shown = user.run(&["state", "check", "--state-dir", dir]);
    assert!(shown.status.success(), "{}", text(&shown));
    assert!(
        text(&shown).contains("in use           yes") && text(&shown).ends_with("ok\n"),
        "{}",
        text(&shown)
    );
    let refused = user.run(&["state", "reset", "--state-dir", dir]);
    assert_eq!(refused.status.code(), Some(69), "{}", text(&refused));
    drop(holder);
}

#[test]
fn damage_is_named_and_a_reset_moves_it_aside() {
    let user = User::new();
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
    user.end_daemon(rustix::process::Signal::KILL);
    let dir = user.state_dir();
    let segments = fs::read_dir(&dir).expect("it is there").flatten().map(|entry| entry.path());
    let is_segment = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-"))
    };
    let segment = segments.into_iter().find(is_segment).expect("there is a log");
    let mut bytes = fs::read(&segment).expect("it can be read");
    // In its first record, with others after it.
    bytes[60] ^= 1;
    fs::write(&segment, bytes).expect("it can be written");
    let dir_text = dir.to_str().expect("it is text");
    let shown = user.run(&["state", "check", "--state-dir", dir_text]);
    assert_eq!(shown.status.code(), Some(69), "{}", text(&shown));
    let name = segment.file_name().expect("it has one").to_string_lossy().into_owned();
    assert!(text(&shown).contains(&name), "{}", text(&shown));
    let reset = user.run(&["state", "reset", "--state-dir", dir_text]);
    assert!(reset.status.success(), "{}", text(&reset));
    assert!(dir.join("old-1").join(name).exists());
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
}
