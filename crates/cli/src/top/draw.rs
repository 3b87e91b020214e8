//! The screen of `top`. It draws only what is visible.

use super::model::{Lock, Mode, Model};
use crate::show;
use lockkeeper_client::{Deadlock, Entry};
use ratatui::{
    Frame,
    layout::{Constraint, Layout},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::Paragraph,
};
use std::env;

const HELP: &str = "
  ↑ ↓  j k     select a lock; PgUp PgDn, Home End, g G go farther
  /            show only names and labels with this text; Esc shows all again
  s            sort by longest wait, longest queue, longest held, name
  r            release by force: its holders are told, whoever waits is next
  Ctrl-Z       back to the shell; fg comes back
  q            quit

  WAITING  how many wait for it          LONGEST  how long one has waited
  HELD     for how long it is held       red      in a deadlock, shown below

  Any key goes back.";

pub(crate) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let area = frame.area();
    let queue = (area.height / 3).max(3);
    let [title, heads, list, queue, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(queue),
        Constraint::Length(1),
    ])
    .areas(area);
    let columns = usize::from(area.width);
    let text = |line: &str, style: Style| Line::styled(show::fit(line, columns).into_owned(), style);
    frame.render_widget(text(&summary(model), Style::new().add_modifier(Modifier::BOLD)), title);
    let inverse = style().add_modifier(Modifier::REVERSED);
    if model.mode == Mode::Help {
        frame.render_widget(Paragraph::new(HELP), list.union(queue));
    } else {
        let wide = columns.saturating_sub(26) * 2 / 5;
        let heading = format!("WAITING  LONGEST     HELD  {:wide$}  HELD BY", "NAME");
        frame.render_widget(text(&show::pad(&heading, columns), inverse), heads);
        model.page = usize::from(list.height);
        // The selected one is on the screen.
        model.first = model.first.min(model.selected).max((model.selected + 1).saturating_sub(model.page));
        let rows = model.visible(model.first, model.page).enumerate().map(|(row, lock)| {
            let style = match (lock.deadlock, model.first + row == model.selected) {
                (true, selected) => coloured(Color::Red).add_modifier(reversed(selected)),
                (false, selected) => style().add_modifier(reversed(selected)),
            };
            text(&show::pad(&self::row(model, lock, wide), columns), style)
        });
        frame.render_widget(Paragraph::new(rows.collect::<Vec<_>>()), list);
        let lines = details(model, usize::from(queue.height));
        let lines = lines.iter().map(|(line, style)| text(line, *style));
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), queue);
    }
    frame.render_widget(text(&footer(model, columns), style().add_modifier(Modifier::DIM)), foot);
}

fn style() -> Style {
    Style::new()
}

/// A colour, unless the user wants none.
fn coloured(colour: Color) -> Style {
    match env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        true => style().add_modifier(Modifier::BOLD),
        false => style().fg(colour),
    }
}

fn reversed(selected: bool) -> Modifier {
    if selected { Modifier::REVERSED } else { Modifier::empty() }
}

fn summary(model: &Model) -> String {
    if let Some(pid) = model.stopped {
        return format!("lockkeeper: the daemon (pid {pid}) is stopped. `kill -CONT {pid}` continues it");
    }
    let mut text = format!("lockkeeper: {} held, {} waiting", model.held, model.waiting);
    if let Some(rate) = model.rate {
        text += &format!(", {rate:.1} grants/s");
    }
    match model.snapshot.deadlocks.len() {
        0 => {}
        1 => text += ", 1 DEADLOCK",
        count => text += &format!(", {count} DEADLOCKS"),
    }
    if !model.filter.is_empty() {
        text += &format!(". {} with \"{}\"", model.len(), show::label(&model.filter));
    }
    text
}

fn row(model: &Model, lock: &Lock, wide: usize) -> String {
    let age = |count: u32, since| if count > 0 { show::age(since) } else { String::new() };
    let name = show::name(model.name(lock));
    let name = show::pad(&show::fit(&name, wide), wide);
    let holder = match lock.holders {
        0 => "(those before it wait for other names)".into(),
        1 => holder(model, lock),
        count => format!("{} and {} more", holder(model, lock), count - 1),
    };
    let (wait, held) = (age(lock.waiters, lock.longest_wait), age(lock.holders, lock.longest_held));
    format!("{:>7}  {wait:>7}  {held:>7}  {name}  {holder}", lock.waiters)
}

fn holder(model: &Model, lock: &Lock) -> String {
    model.members(lock).next().map(show::who).unwrap_or_default()
}

/// The queue of the selected lock, and the cycle it is in. As many lines as there is room for.
fn details(model: &Model, lines: usize) -> Vec<(String, Style)> {
    let Some(lock) = model.selected() else {
        return vec![(String::new(), style()), ("Nobody holds a lock, and nobody waits.".into(), style())];
    };
    let (name, members) = (show::name(model.name(lock)), model.members(lock));
    let mut details = vec![(format!("── {name}: {} held, {} waiting", lock.holders, lock.waiters), style())];
    let concerned = |deadlock: &&Deadlock| {
        deadlock.cycle.iter().any(|step| model.members(lock).any(|entry| entry.arrival == step.arrival))
    };
    if let Some(Deadlock { cycle, .. }) =
        model.snapshot.deadlocks.iter().filter(|_| lock.deadlock).find(concerned)
    {
        let steps = cycle.iter().map(|step| match &step.waits_for {
            Some(name) => format!("{} waits for {}", step.arrival, show::name(name)),
            None => format!("{} waits for its nested request", step.arrival),
        });
        let steps = steps.collect::<Vec<_>>().join(", ");
        details.push((format!("deadlock: {steps}"), coloured(Color::Red)));
    }
    let way_out = model.members(lock).find_map(show::way_out);
    details.extend(way_out.map(|way_out| (way_out, coloured(Color::Red))));
    details.extend(members.take(lines.saturating_sub(details.len())).map(|entry| (member(entry), style())));
    details
}

fn member(entry: &Entry) -> String {
    let state = if entry.token.is_some() { "held" } else { "waiting" };
    let pid = show::pid(entry).map(|pid| format!("pid {pid}  ")).unwrap_or_default();
    let (mode, since) = (entry.mode.to_string(), show::since(entry));
    format!("{state:7}  {mode:9}  {since:>7}  {pid}{} (request {})", show::who(entry), entry.arrival)
}

fn footer(model: &Model, columns: usize) -> String {
    match &model.mode {
        Mode::Filter => format!("/{}▏  Enter keeps it, Esc shows all", show::label(&model.filter)),
        Mode::Confirm(name) => {
            let ask = |name: &str, more| format!("Break every lock of {name}?{more} y/n");
            let (name, more) = (show::name(name), " Its holders are told, and should stop.");
            match show::width(&ask(&name, more)) <= columns {
                true => ask(&name, more),
                // The keys have to be on the screen.
                false => ask(&show::fit(&name, columns.saturating_sub(show::width(&ask("", "")))), ""),
            }
        }
        Mode::Help => "Any key goes back".into(),
        Mode::List => match &model.note {
            Some(note) => note.clone(),
            None => format!(
                "q quit  ↑↓ select  / filter  s sort ({})  r release by force  ? help",
                model.sort.name()
            ),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::footer;
    use super::{HELP, draw};
    use crate::{
        show,
        top::model::{Mode as Screen, Model},
    };
    use lockkeeper_client::{Entry, Snapshot};
    use lockkeeper_core::{Mode, Name};
    use ratatui::{Terminal, backend::TestBackend};
    use std::time::Instant;

    /// The cells of a screen of 80 columns, row by row.
    fn screen(names: &[&str]) -> Vec<Vec<String>> {
        let entry = |(number, name): (usize, &&str)| Entry {
            name: Name::from(*name),
            mode: Mode::Exclusive,
            client_id: "c".into(),
            arrival: number as u64 + 1,
            token: Some(1),
            info: Some("ann@build7: ./a-script-with-a-name-that-is-rather-long.sh".into()),
            since: 1000,
            nested_in: None,
            stole: false,
            owner: Some("pid 71 ann@build7".into()),
        };
        let mut model = Model::default();
        let entries = names.iter().enumerate().map(entry).collect();
        model.take(Snapshot { entries, deadlocks: Vec::new(), last_token: 0 }, Instant::now());
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("it is in memory");
        terminal.draw(|frame| draw(frame, &mut model)).expect("it is in memory");
        let buffer = terminal.backend().buffer();
        let row = |row| (0..80).map(|column| buffer[(column, row)].symbol().to_string()).collect();
        (0..24).map(row).collect()
    }

    /// The column at which the holders begin is the same in all rows, whatever the names.
    #[test]
    fn columns_are_straight_with_names_of_any_width() {
        let names = ["plain", "数据库", "deploy 🚀", "👍🏽"];
        let screen = screen(&names);
        let begins = |row: &[String], text: &str| row.windows(4).position(|cells| cells.concat() == text);
        let heading = begins(&screen[1], "D BY").map(|at| at - 3);
        assert!(heading.is_some());
        for row in &screen[2..2 + names.len()] {
            assert_eq!(begins(row, "ann@"), heading, "{}", row.concat());
            assert_eq!(row.concat().matches('…').count(), 1, "only the label is cut: {}", row.concat());
        }
    }

    #[test]
    fn who_is_asked_sees_what_to_press_whatever_the_name() {
        let asked = |name: &str| {
            let mut model = Model::default();
            model.mode = Screen::Confirm(Name::from(name));
            footer(&model, 80)
        };
        let short = asked("backup");
        assert!(
            short.starts_with("Break every lock of backup?") && short.contains("holders are told"),
            "{short}"
        );
        for long in ["a-name-of-some-length", &"x".repeat(1000), &"数".repeat(50)] {
            let line = asked(long);
            assert!(show::width(&line) <= 80 && line.ends_with("? y/n"), "{line}");
        }
    }

    #[test]
    fn the_help_fits_eighty_columns() {
        for line in HELP.lines() {
            assert!(show::width(line) <= 80, "{line}");
        }
        assert!(show::width(show::HIDDEN) <= 80);
    }
}
