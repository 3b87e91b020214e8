//! Runs the guides in `docs/` and the npm package's README, and compares their output with what
//! they show.
//!
//! In a block marked `console`, lines after `$ ` are typed into one bash for the whole guide, with
//! `> ` for continuation lines; the others are the expected output. `…` matches anything within a
//! line; alone on a line, any lines. A command must succeed, unless the next one reads `$?`. A
//! block with a file name after its language is that file. The npm package's README has no other
//! blocks, except those that a test below lists with the test that runs them.

use crate::{Result, root, setup};
use lockkeeper_testing::{Postgres, Process};
use std::{
    env, fs,
    os::unix::fs::{DirBuilderExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Between what one command prints and what the next does: bytes that none of them prints.
const MARK: &str = "\u{1}\u{2}";

/// How many seconds a guide may take: one that waits for ever has failed.
const LIMIT: &str = "300";

/// All of them, or those with `part` in their path.
pub(crate) fn run_all(part: &str) -> Result {
    crate::cargo(&["build", "--package", "lockkeeper-cli"])?;
    let mut guides = Vec::new();
    find(&root().join("docs"), &mut guides).map_err(|error| format!("docs: {error}"))?;
    guides.sort();
    guides.push(root().join("packages/lockkeeper/README.md"));
    for guide in guides {
        let name = guide.strip_prefix(root()).unwrap_or(&guide).display().to_string();
        let text = fs::read_to_string(&guide).map_err(|error| format!("{name}: {error}"))?;
        let steps = steps(&text);
        if steps.is_empty() || !name.contains(part) {
            continue;
        }
        eprintln!("xtask: {name}: {} steps", steps.len());
        let home = Home::new().map_err(|error| format!("a directory for {name}: {error}"))?;
        let uses_database = text.contains("psql ");
        let _database = uses_database.then(|| database(&home)).transpose()?;
        follow(&steps, &home).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

/// The database of a guide that uses one.
fn database(home: &Home) -> Result<Process> {
    setup::postgres()?;
    let failed = |error: std::io::Error| format!("PostgreSQL: {error}");
    let postgres = Postgres::new(&home.database()).map_err(failed)?;
    let serve = postgres.serve();
    let words = [serve.get_program()].into_iter().chain(serve.get_args()).map(Into::into).collect();
    let process = Process::start(words, &home.0.join("database.log")).map_err(failed)?;
    postgres.wait().map_err(failed)?;
    Ok(process)
}

fn find(dir: &Path, guides: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, guides)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            guides.push(path);
        }
    }
    Ok(())
}

enum Step {
    File { name: String, text: String },
    Command { line: usize, typed: String, shown: Vec<String> },
}

fn steps(guide: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = guide.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let Some(mark) = line.strip_prefix("```") else { continue };
        let block = lines.by_ref().take_while(|(_, line)| *line != "```");
        match mark.split_once(' ') {
            None if mark == "console" => block.for_each(|(at, line)| read(&mut steps, at + 1, line)),
            Some((_, name)) => {
                let text = block.fold(String::new(), |text, (_, line)| text + line + "\n");
                steps.push(Step::File { name: name.into(), text });
            }
            None => block.for_each(drop),
        }
    }
    steps
}

/// One line of a console.
fn read(steps: &mut Vec<Step>, line: usize, text: &str) {
    if let Some(typed) = text.strip_prefix("$ ") {
        return steps.push(Step::Command { line, typed: typed.into(), shown: Vec::new() });
    }
    let Some(Step::Command { typed, shown, .. }) = steps.last_mut() else { return };
    match text.strip_prefix("> ") {
        Some(more) if shown.is_empty() => *typed += &format!("\n{more}"),
        _ => shown.push(text.into()),
    }
}

/// A separate home, whose processes all end with the guide.
struct Home(PathBuf);

impl Home {
    fn new() -> std::io::Result<Self> {
        let home = env::temp_dir().join(format!("lockkeeper-guide-{}", std::process::id()));
        let mut dir = fs::DirBuilder::new();
        dir.mode(0o700).recursive(true);
        dir.create(home.join("run"))?;
        dir.create(home.join("work/node_modules/.bin"))?;
        symlink(
            root().canonicalize()?.join("packages/lockkeeper/bin/lockkeeper.js"),
            home.join("work/node_modules/.bin/lockkeeper"),
        )?;
        symlink(
            root().canonicalize()?.join("packages/lockkeeper"),
            home.join("work/node_modules/lockkeeper"),
        )?;
        Ok(Self(home))
    }

    fn database(&self) -> PathBuf {
        self.0.join("database")
    }

    fn script(&self, file: &Path) -> Command {
        let mut bash = Command::new("timeout");
        bash.args([LIMIT, "script", "-qec"])
            .arg(format!("bash {}", file.display()))
            .arg("/dev/null")
            .stdin(Stdio::null());
        bash.env("NO_COLOR", "1").env("TERM", "xterm");
        bash.env("npm_config_progress", "false").env("npm_config_update_notifier", "false");
        let path = env::var("PATH").unwrap_or_default();
        // A Node that has WebSocket and `await using`.
        let node = root().join("node_modules/node24/bin");
        bash.env("PATH", format!("{}:{}:{path}", root().join("target/debug").display(), node.display()));
        bash.env("HOME", &self.0).env("LOCKKEEPER_DIR", self.0.join("run")).current_dir(self.0.join("work"));
        bash.env("PGHOST", self.database()).env("PGUSER", "postgres").env("PAGER", "cat");
        for name in ["LOCKKEEPER_URL", "LOCKKEEPER_BUCKET", "LOCKKEEPER_TOKEN_FILE", "XDG_CONFIG_HOME"] {
            bash.env_remove(name);
        }
        bash
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let ours = format!("HOME={}\0", self.0.display()).into_bytes();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes.filter(|process| process.file_name().as_encoded_bytes()[0].is_ascii_digit())
        {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            if environment.windows(ours.len()).any(|window| window == ours) {
                let _ =
                    Command::new("kill").arg("-9").arg(process.file_name()).stderr(Stdio::null()).status();
            }
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A person takes a while to type the next line. So does this, until what was sent to the
/// background is where it should be.
fn patience(typed: &str) -> (String, String) {
    let Some(typed) = typed.strip_suffix('&') else { return Default::default() };
    let until = |what: &str| format!("for i in {{1..300}}; do {what} && break; sleep 0.1; done; ");
    let port = typed.split_once("--listen ").and_then(|(_, rest)| rest.split([' ', '\n']).next());
    match port.and_then(|address| address.split_once(':')) {
        Some((host, port)) => (String::new(), until(&format!("(: < /dev/tcp/{host}/{port}) 2> /dev/null"))),
        None if typed.contains("lockkeeper serve") => {
            (String::new(), until("[ -S \"$LOCKKEEPER_DIR/daemon.sock\" ]"))
        }
        None => {
            let count = "$(lockkeeper query --json | grep -o clientId | wc -l)";
            (format!("count={count}\n"), until(&format!("[ {count} -gt $count ]")))
        }
    }
}

fn follow(steps: &[Step], home: &Home) -> Result {
    let mut script = String::from("exec 2>&1\n");
    for step in steps {
        match step {
            Step::File { name, text } => {
                fs::write(home.0.join("work").join(name), text)
                    .map_err(|error| format!("{name}: {error}"))?;
            }
            // `$?` is the command's own in the next one, too.
            Step::Command { typed, .. } => {
                let (before, after) = patience(typed);
                script +=
                    &format!("{before}{typed}\nstatus=$?; {after}echo \"{MARK}$status\"; (exit $status)\n");
            }
        }
    }
    let failed = |error: std::io::Error| format!("bash: {error}");
    let script_file = home.0.join("script");
    fs::write(&script_file, script).map_err(failed)?;
    // On a terminal, as it will be for the reader.
    let output = home.script(&script_file).output().map_err(failed)?.stdout;
    compare(steps, &String::from_utf8_lossy(&output).replace('\r', ""))
}

fn compare(steps: &[Step], output: &str) -> Result {
    let mut rest = output;
    let mut commands = steps.iter().filter(|step| matches!(step, Step::Command { .. })).peekable();
    while let Some(Step::Command { line, typed, shown }) = commands.next() {
        let Some((printed, after)) = rest.split_once(MARK) else {
            return Err(format!("line {line}: `{typed}` did not end; it printed:\n{rest}"));
        };
        let (status, after) = after.split_once('\n').unwrap_or((after, ""));
        rest = after;
        let asks = |next: &&Step| matches!(next, Step::Command { typed, .. } if typed.contains("$?"));
        if status != "0" && commands.peek().is_none_or(|next| !asks(next)) {
            return Err(format!("line {line}: `{typed}` ended with {status}; it printed:\n{printed}"));
        }
        let printed: Vec<&str> = printed.lines().collect();
        let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
        if !lines_match(&shown, &printed) {
            let (shown, printed) = (shown.join("\n"), printed.join("\n"));
            return Err(format!("line {line}: `{typed}` is shown with\n{shown}\nbut printed\n{printed}"));
        }
    }
    Ok(())
}

fn lines_match(shown: &[&str], printed: &[&str]) -> bool {
    match (shown.split_first(), printed.split_first()) {
        (None, printed) => printed.is_none(),
        (Some((&"…", shown)), _) => (0..=printed.len()).any(|skip| lines_match(shown, &printed[skip..])),
        (Some((first, shown)), Some((line, printed))) => {
            line_matches(first, line) && lines_match(shown, printed)
        }
        (Some(_), None) => false,
    }
}

fn line_matches(shown: &str, line: &str) -> bool {
    let (shown, line) = (shown.trim_end(), line.trim_end());
    let Some((start, parts)) = shown.split_once('…') else { return shown == line };
    let Some(mut rest) = line.strip_prefix(start) else { return false };
    let mut parts = parts.split('…').peekable();
    while let Some(part) = parts.next() {
        rest = match (parts.peek(), rest.find(part)) {
            (None, _) => return rest.ends_with(part),
            (Some(_), Some(at)) => &rest[at + part.len()..],
            (Some(_), None) => return false,
        };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{line_matches, lines_match, steps};
    use crate::root;
    use std::fs;

    /// The blocks of the npm package's README that are not run here, by their first lines, and why.
    const ELSEWHERE: [(&str, &str); 3] = [
        (
            "npm install lockkeeper",
            "no registry has it: packages/lockkeeper/test/project.js installs it as npm packs it",
        ),
        ("<title>waits</title>", "a page: packages/lockkeeper/test/browser.test.js opens it in two tabs"),
        (
            "<script src=\"/node_modules/lockkeeper/dist/navigator.min.js\"",
            "a tag: browser.test.js has it in a page",
        ),
    ];

    #[test]
    fn every_block_of_the_npm_readme_is_run() {
        let readme = fs::read_to_string(root().join("packages/lockkeeper/README.md")).unwrap();
        let mut lines = readme.lines();
        let mut others = Vec::new();
        while let Some(line) = lines.next() {
            let Some(mark) = line.strip_prefix("```") else { continue };
            let first = lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>()[0];
            if mark != "console" && !mark.contains(' ') {
                others.push(first);
            }
        }
        let listed: Vec<&str> = ELSEWHERE.map(|(first, _)| first).into();
        assert_eq!(others.len(), listed.len(), "{others:?}: run it, or say in ELSEWHERE what does");
        assert!(others.iter().zip(&listed).all(|(block, known)| block.starts_with(known)), "{others:?}");
    }

    #[test]
    fn an_ellipsis_is_anything() {
        assert!(line_matches("a … c", "a b c") && line_matches("…", "") && line_matches("x", "x "));
        assert!(line_matches("…b…d", "abcd") && !line_matches("a … c", "a b") && !line_matches("a", "b"));
        assert!(lines_match(&["a", "…", "d"], &["a", "b", "c", "d"]) && lines_match(&["…"], &[]));
        assert!(!lines_match(&["a"], &["a", "b"]) && !lines_match(&["a", "b"], &["a"]));
    }

    #[test]
    fn a_guide_is_read_as_it_is_typed() {
        let guide = "text\n```console\n$ one \\\n> two\nshown\n```\n```js a.mjs\nx\n```\n```rust\nfn\n```\n";
        assert_eq!(steps(guide).len(), 2);
    }
}
