//! What `lockkeeper` says of itself: help, completions, manual pages, and where the daemon is.

mod common;

use common::{User, is_skipped};
use std::{fs, process::Command};

fn said(user: &User, args: &[&str]) -> String {
    let done = user.run(args);
    assert_eq!(done.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("it is text")
}

/// `lockkeeper status | head -1` ended with a panic.
#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let user = User::new();
    for args in
        [&["query"][..], &["status"], &["status", "--socket"], &["completions", "bash"], &[], &["stop"]]
    {
        let (reader, writer) = std::io::pipe().expect("there are descriptors left");
        drop(reader);
        let done = user.command(args).stdout(writer).output().expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.is_empty(), "{args:?}: {said}");
    }
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
        "held",
        "completions",
        "man",
    ] {
        let help = said(&user, &[command, "--help"]);
        assert!(help.contains(&format!("  lockkeeper {command} ")), "{help}");
        // Lines that a terminal would break are hard to read.
        assert!(help.lines().all(|line| line.chars().count() <= 110), "{help}");
        assert!(said(&user, &["--help"]).contains(&format!("\n  {command} ")));
    }
    let help = said(&user, &["--help"]);
    assert!(help.lines().all(|line| line.chars().count() <= 110), "{help}");
    let help = said(&user, &["run", "--help"]);
    for taught in ["lockkeeper run backup -- ./backup.sh", "75", "76", "128+N", "LOCKKEEPER_FENCE"] {
        assert!(help.contains(taught), "{taught}");
    }
    // It is shown as it is typed.
    assert!(said(&user, &["lock", "--help"]).contains("for the shell: eval \"$(lockkeeper lock NAME)\"."));
    // What is not for a shell to run does not look so.
    let wrong = user.run(&["query", "lock", "--bogus"]);
    assert_eq!((wrong.status.code(), wrong.stdout), (Some(64), Vec::new()));
    assert!(user.run(&["lock", "--bogus"]).stdout.ends_with(b" exit 64\n"));
    let none = user.run(&["--machine", "logs"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("journalctl -u lockkeeper-machine"));
    assert!(said(&user, &["--version"]).starts_with("lockkeeper "));
}

#[test]
fn alone_it_says_where_the_daemon_is_and_starts_none() {
    let user = User::new();
    let socket = user.socket().display().to_string();
    let alone = said(&user, &[]);
    assert!(
        alone.contains(&format!("No daemon runs at unix:{socket}. It is started when it is needed.")),
        "{alone}"
    );
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
    let marker = user.file("marker", "");
    fs::remove_file(&marker).expect("it was written");
    let nasty = format!("$(touch${{IFS}}{marker})");
    let _holder = user.hold(&["nightly", "two words", &nasty]);
    let quoted = format!("\\$\\(touch\\$\\{{IFS\\}}{marker}\\)\n");
    for (words, expected) in [
        ("lockkeeper run nig", "nightly\n"),
        ("lockkeeper query n", "nightly\n"),
        ("lockkeeper query ''", &format!("{quoted}nightly\n")),
        (r"lockkeeper query '\$'", &quoted),
        ("lockkeeper --machine run n", "nmachine\n"),
        ("lockkeeper query --machine n", "nmachine\n"),
        ("lockkeeper run nightly -- hostn", "hostname"),
    ] {
        // There is no daemon of the machine.
        let machine = r#"lockkeeper() { if [[ $1 == --machine ]]; then echo nmachine; else command lockkeeper "$@"; fi; }"#;
        let complete = format!(
            "source $0; {machine}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _lockkeeper_words \
             lockkeeper \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let done = shell(&user, "bash", &["--norc", "-c", &complete, &script]).output().expect("bash starts");
        let shown = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(shown.starts_with(expected), "{words}: {shown} {}", String::from_utf8_lossy(&done.stderr));
    }
    let terminal = user.shell();
    terminal.press(&format!("source {script}; echo lo''aded\n"));
    terminal.shows("loaded");
    for (typed, completed) in [
        ("lockkeeper run nightly -- cat /etc/passw", "cat /etc/passwd"),
        ("lockkeeper query \\$", "lockkeeper query \\$\\(touch"),
    ] {
        terminal.press(&format!("{typed}\t"));
        terminal.shows(completed);
        terminal.press("\x15");
    }
    terminal.press("exit\n");
    assert!(!fs::exists(&marker).expect("the directory is ours"), "a name is not executed");
}

/// A shell with `lockkeeper` on its path.
fn shell(user: &User, shell: &str, args: &[&str]) -> Command {
    let found = Command::new(shell).arg("--version").output().is_ok();
    assert!(found, "{shell} is not installed: cargo xtask setup, or LOCKKEEPER_SKIP_SHELLS=1");
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_lockkeeper")).parent().expect("it is in a directory");
    let mut command = Command::new(shell);
    command.args(args).env_clear();
    command.envs(user.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    let home = user.file("home", "").replace("/home", "");
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).env("HOME", home);
    command
}

#[test]
fn fish_completes_names_and_commands() {
    if is_skipped("LOCKKEEPER_SKIP_SHELLS") {
        return;
    }
    let user = User::new();
    let script = user.file("completion.fish", &said(&user, &["completions", "fish"]));
    let _holder = user.hold(&["nightly", "two words", "dollar$(uname)"]);
    // There is no daemon of the machine.
    let machine = "function lockkeeper; if test $argv[1] = --machine; echo mine; else; command lockkeeper $argv; end; end";
    for (words, expected) in [
        ("lockkeeper run --if", "--if-available\t"),
        ("lockkeeper run nig", "nightly\n"),
        ("lockkeeper unlock n", "nightly\n"),
        ("lockkeeper --machine query m", "mine\n"),
        ("lockkeeper query --machine m", "mine\n"),
        // It is quoted when it is put into the line.
        ("lockkeeper query dollar", "dollar$(uname)\n"),
        ("lockkeeper run nightly -- hostn", "hostname"),
        ("lockkeeper run nightly -- cat /etc/passw", "/etc/passwd"),
    ] {
        let complete = format!("{machine}; source {script}; complete -C '{words}'");
        let done = shell(&user, "fish", &["--no-config", "-c", &complete]).output().expect("fish starts");
        let shown = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(shown.starts_with(expected), "{words}: {shown} {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn zsh_completes_names_and_commands() {
    if is_skipped("LOCKKEEPER_SKIP_SHELLS") {
        return;
    }
    let user = User::new();
    let mut zsh = shell(&user, "zsh", &["-f", "-i"]);
    let script = user.file("_lockkeeper", &said(&user, &["completions", "zsh"]));
    let _holder = user.hold(&["nightly", "two words", "dollar$(uname)"]);
    let terminal = common::terminal::Terminal::start(zsh.env("PS1", "ready> "));
    terminal.shows("ready> ");
    // There is no daemon of the machine.
    terminal
        .press("lockkeeper() { if [[ $1 == --machine ]]; then echo mine; else command lockkeeper $@; fi }\n");
    let folder = script.replace("/_lockkeeper", "");
    terminal
        .press(&format!("fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D; echo lo''aded\n"));
    terminal.shows("loaded");
    for (typed, completed) in [
        ("lockkeeper run --if", "lockkeeper run --if-available"),
        ("lockkeeper run nig", "lockkeeper run nightly"),
        ("lockkeeper unlock n", "lockkeeper unlock nightly"),
        ("lockkeeper --machine query m", "lockkeeper --machine query mine"),
        ("lockkeeper query --machine m", "lockkeeper query --machine mine"),
        ("lockkeeper query dollar", "lockkeeper query dollar\\$\\("),
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
    let page = |name: &str| fs::read_to_string(format!("{dir}/lockkeeper{name}.1")).expect("it was written");
    assert!(page("").contains(".SH EXAMPLES\n.nf\n"), "{}", page(""));
    let help = said(&user, &["--help"]);
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands =
        commands.filter_map(|line| line.split_whitespace().next()).filter(|command| *command != "help");
    let mut count = 0;
    for command in commands {
        let (page, help) = (page(&format!("-{command}")), said(&user, &[command, "--help"]));
        assert!(page.contains(".SH NAME") && !page.contains("Exit status:"), "{page}");
        assert_eq!(page.contains(".SH EXAMPLES\n.nf\n"), help.contains("\nExample"), "{page}");
        assert_eq!(page.contains(".SH EXIT STATUS\n"), help.contains("\nExit status:"), "{page}");
        count += 1;
    }
    assert!(count >= 18, "{help}");
    assert!(page("-serve").contains(".SH NOTES\nEvery flag"), "{}", page("-serve"));
    let run = page("-run");
    assert!(run.contains(" \\-\\- [\\fICOMMAND\\fR]") && run.contains("\n  75   the lock was not"), "{run}");
    assert_eq!(user.run(&["man", "/proc/nowhere"]).status.code(), Some(70));
}
