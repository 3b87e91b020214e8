//! `run` leaves no process behind, not even one that has ended: the first process of a container
//! often waits for none but its own.
#![cfg(target_os = "linux")]

mod common;

use common::{Server, User};
use rustix::process::{getpid, set_child_subreaper};
use std::{collections::BTreeSet, fs};

/// The processes that this one has to wait for, by number.
fn children() -> BTreeSet<String> {
    let threads = fs::read_dir("/proc/self/task").expect("it can be read");
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().map(String::from).collect::<Vec<_>>()).collect()
}

#[test]
fn run_leaves_none_of_its_processes() {
    set_child_subreaper(Some(getpid())).expect("a process can be one");
    let (user, server) = (User::new(), Server::start("60s"));
    // It starts the daemon, which stays.
    assert!(user.run(&["run", "a", "--", "true"]).status.success());
    let before = children();
    for _ in 0..5 {
        assert!(user.run(&["run", "a", "--", "true"]).status.success());
        assert_eq!(user.run(&["run", "a", "--", "no-such-command"]).status.code(), Some(127));
        let on_network = |command| {
            let run = server.command(&["run", "-q", "a", "--", command]).output();
            run.expect("it starts").status.code()
        };
        assert_eq!((on_network("true"), on_network("no-such-command")), (Some(0), Some(127)));
        assert_eq!(children(), before);
    }
}
