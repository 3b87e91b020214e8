//! What `lockkeeper` says of itself: help, completions, manual pages, and where the daemon is.

mod common;

use common::User;
use std::{fs, process::Command};

fn said(user: &User, args: &[&str]) -> String {
    let done = user.run(args);
    assert_eq!(done.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("it is text")
}

#[test]
fn every_command_teaches_with_examples() {
    let user = User::new();
    for command in [
        "run",
        "query",
        "inspect",
        "release",
        "top",
        "state",
        "status",
        "logs",
        "unlock",
        "completions",
        "man",
    ] {
        let help = said(&user, &[command, "--help"]);
        assert!(help.contains(&format!("  lockkeeper {command} ")), "{help}");
        // Lines that a terminal would break are hard to read.
        assert!(help.lines().all(|line| line.chars().count() <= 110), "{help}");
        assert!(said(&user, &["--help"]).contains(&format!("\n  {command} ")));
    }
    let help = said(&user, &["run", "--help"]);
    for taught in ["lockkeeper run backup -- ./backup.sh", "75", "76", "128+N", "LOCKKEEPER_FENCE"] {
        assert!(help.contains(taught), "{taught}");
    }
    // It is shown as it is typed.
    assert!(said(&user, &["lock", "--help"]).contains("for the shell: eval \"$(lockkeeper lock NAME)\"."));
    assert!(said(&user, &["--version"]).starts_with("lockkeeper "));
}

#[test]
fn alone_it_says_where_the_daemon_is_and_starts_none() {
    let user = User::new();
    let socket = user.socket().display().to_string();
    let alone = said(&user, &[]);
    assert!(alone.contains(&format!("No daemon at unix:{socket}")), "{alone}");
    assert!(alone.contains("lockkeeper run hello -- echo mine"), "{alone}");
    assert!(!user.socket().exists());
    let _holder = user.hold(&["a"]);
    let alone = said(&user, &[]);
    let pid = user.daemon().as_raw_nonzero();
    assert!(alone.contains(&format!("The daemon at unix:{socket} runs (pid {pid}, for ")), "{alone}");
    assert!(
        alone.contains(&format!("version {}): 1 held, 0 waiting.", env!("CARGO_PKG_VERSION"))),
        "{alone}"
    );
    let elsewhere = user.command(&[]).env("LOCKKEEPER_URL", "unix:/proc/no/daemon.sock").output();
    let elsewhere = String::from_utf8(elsewhere.expect("it starts").stdout).expect("it is text");
    assert!(elsewhere.contains("start it with `lockkeeper serve`"), "{elsewhere}");
}

#[test]
fn shells_complete_it() {
    let user = User::new();
    let script = user.file("completion.bash", &said(&user, &["completions", "bash"]));
    let complete = "source $0; COMP_WORDS=(lockkeeper run --if); COMP_CWORD=2; \
                    _lockkeeper lockkeeper --if run; echo ${COMPREPLY[@]}";
    let done = Command::new("bash").args(["-c", complete, &script]).output().expect("bash starts");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "--if-available\n");
    // The names of locks; and after --, commands and their files.
    let _holder = user.hold(&["nightly", "two words"]);
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().expect("it is in a directory");
    for (words, expected) in [
        ("lockkeeper run nig", "nightly\n"),
        ("lockkeeper query n", "nightly\n"),
        ("lockkeeper run nightly -- hostn", "hostname"),
        ("lockkeeper run nightly -- cat /etc/passw", "/etc/passwd"),
    ] {
        let complete = format!(
            "source $0; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _lockkeeper_words lockkeeper \
             ${{COMP_WORDS[COMP_CWORD]}} ${{COMP_WORDS[COMP_CWORD - 1]}}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", &complete, &script]).env_clear();
        bash.envs(user.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
        let done =
            bash.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).output().expect("bash starts");
        let shown = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(shown.starts_with(expected), "{words}: {shown} {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// A shell with `lockkeeper` on its path, if that shell is installed.
fn shell(user: &User, shell: &str, args: &[&str]) -> Option<Command> {
    if Command::new(shell).arg("--version").output().is_err() {
        eprintln!("SKIPPED: {shell} is not installed: cargo xtask setup");
        return None;
    }
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().expect("it is in a directory");
    let mut command = Command::new(shell);
    command.args(args).env_clear();
    command.envs(user.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    let home = user.file("marker", "").replace("/marker", "");
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).env("HOME", home);
    Some(command)
}

#[test]
fn fish_completes_names_and_commands() {
    let user = User::new();
    let script = user.file("completion.fish", &said(&user, &["completions", "fish"]));
    let _holder = user.hold(&["nightly", "two words"]);
    for (words, expected) in [
        ("lockkeeper run --if", "--if-available\t"),
        ("lockkeeper run nig", "nightly\n"),
        ("lockkeeper unlock n", "nightly\n"),
        ("lockkeeper run nightly -- hostn", "hostname"),
        ("lockkeeper run nightly -- cat /etc/passw", "/etc/passwd"),
    ] {
        let complete = format!("source {script}; complete -C '{words}'");
        let Some(mut fish) = shell(&user, "fish", &["--no-config", "-c", &complete]) else { return };
        let done = fish.output().expect("fish starts");
        let shown = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(shown.starts_with(expected), "{words}: {shown} {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn zsh_completes_names_and_commands() {
    let user = User::new();
    let Some(mut zsh) = shell(&user, "zsh", &["-f", "-i"]) else { return };
    let script = user.file("_lockkeeper", &said(&user, &["completions", "zsh"]));
    let _holder = user.hold(&["nightly", "two words"]);
    let terminal = common::terminal::Terminal::start(zsh.env("PS1", "ready> "));
    terminal.shows("ready> ");
    let folder = script.replace("/_lockkeeper", "");
    terminal
        .press(&format!("fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; echo lo''aded\n"));
    terminal.shows("loaded");
    for (typed, completed) in [
        ("lockkeeper run --if", "lockkeeper run --if-available"),
        ("lockkeeper run nig", "lockkeeper run nightly"),
        ("lockkeeper unlock n", "lockkeeper unlock nightly"),
        ("lockkeeper run x -- printen", "lockkeeper run x -- printenv"),
        ("lockkeeper run x -- cat /etc/host.con", "lockkeeper run x -- cat /etc/host.conf"),
    ] {
        terminal.press(&format!("{typed}\t"));
        terminal.shows(completed);
        // The line is removed.
        terminal.press("\x15");
    }
    terminal.press("exit\n");
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let user = User::new();
    let dir = user.file("page", "").replace("/page", "");
    assert_eq!(said(&user, &["man", &dir]), "");
    for page in ["lockkeeper.1", "lockkeeper-run.1", "lockkeeper-top.1"] {
        let page = fs::read_to_string(format!("{dir}/{page}")).expect("it was written");
        assert!(page.contains(".SH NAME") && page.contains(".SH EXAMPLES\n.nf\n"), "{page}");
    }
    assert_eq!(user.run(&["man", "/proc/nowhere"]).status.code(), Some(70));
}
