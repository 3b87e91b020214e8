//! Tables for people, with colours if they go to a terminal.

use crate::show;
use rustix::termios::tcgetwinsize;
use std::io::{IsTerminal, stdout};

/// How a row is painted: the numbers of the terminal's colours.
#[derive(Clone, Copy)]
pub(crate) enum Paint {
    Bold = 1,
    Red = 31,
    Green = 32,
    Yellow = 33,
}

pub(crate) struct Table<const N: usize> {
    rows: Vec<(Paint, [String; N])>,
}

impl<const N: usize> Table<N> {
    pub(crate) fn new(heads: [&str; N]) -> Self {
        Self { rows: vec![(Paint::Bold, heads.map(String::from))] }
    }

    /// Adds a row, whose first cell is painted.
    pub(crate) fn row(&mut self, paint: Paint, cells: [String; N]) {
        self.rows.push((paint, cells));
    }

    /// The table as text. On a terminal, what does not fit into its width is cut off: each row is
    /// one line.
    pub(crate) fn text(&self) -> String {
        let columns = stdout().is_terminal().then(|| tcgetwinsize(stdout()).ok()).flatten();
        let columns = columns.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0);
        self.draw(columns.unwrap_or(usize::MAX), show::colour())
    }

    fn draw(&self, columns: usize, colour: bool) -> String {
        let width = |column: usize| self.rows.iter().map(|(_, cells)| show::width(&cells[column])).max();
        let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
        let mut text = String::new();
        for (paint, cells) in &self.rows {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', 2 + width - show::width(cell)));
            }
            let line = show::fit(line.trim_end(), columns);
            let painted = match paint {
                Paint::Bold => line.len(),
                _ => line.find(' ').unwrap_or(line.len()),
            };
            text.push_str(&painted_if(colour, *paint, &line[..painted]));
            text.push_str(&line[painted..]);
            text.push('\n');
        }
        text
    }
}

/// Text in a colour, if there are to be colours.
pub(crate) fn painted_if(colour: bool, paint: Paint, text: &str) -> String {
    match colour && !text.is_empty() {
        true => format!("\x1b[{}m{text}\x1b[0m", paint as u8),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Paint, Table};

    #[test]
    fn columns_are_aligned_and_rows_cut() {
        let mut table = Table::new(["A", "NAME", "WHO"]);
        table.row(Paint::Green, ["held".into(), "水".into(), "me".into()]);
        table.row(Paint::Yellow, ["x".into(), "long".into(), "another one".into()]);
        let expected = "A     NAME  WHO\nheld  水    me\nx     long  another one\n";
        assert_eq!(table.draw(usize::MAX, false), expected);
        assert_eq!(table.draw(9, false), "A     NA…\nheld  水…\nx     lo…\n");
        assert!(table.draw(80, true).contains("\x1b[32mheld\x1b[0m  水    me\n"));
    }
}
