//! What is printed: first the targets, each beside what was measured, then the tables.

use crate::load::Figures;

#[derive(Default)]
pub struct Report {
    targets: String,
    tables: String,
}

pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Report {
    pub fn target(&mut self, what: &str, measured: f64, target: Target) {
        let (words, limit, met) = match target {
            Target::AtLeast(limit) => ("at least", limit, measured >= limit),
            Target::AtMost(limit) => ("at most", limit, measured <= limit),
        };
        let met = if met { "yes" } else { "**no**" };
        let digits = if limit >= 100.0 { 0 } else { 2 };
        self.targets += &format!("| {what} | {words} {limit} | {measured:.digits$} | {met} |\n");
    }

    pub fn write(&mut self, text: &str) {
        self.tables += text;
        self.tables.push('\n');
    }

    /// A table of so many clients. The first row is what the others are compared with.
    pub fn figures(&mut self, clients: usize, figures: &[Figures], one_name: bool) {
        let plural = if clients == 1 { "client" } else { "clients" };
        let (head, line) = match one_name {
            true => (
                " changes of the holder a second | longest wait ÷ mean | the same in turns |",
                "---|---|---|",
            ),
            false => ("", ""),
        };
        self.write(&format!(
            "| {clients} {plural} | pairs a second | first row ÷ this | server's µs a pair | first row ÷ this |{head}"
        ));
        self.write(&format!("|---|---|---|---|---|{line}"));
        for figure in figures {
            let Figures { name, per_second, changes, cpu, longest, longest_turns } = figure;
            let (rate, cost) = (figures[0].per_second / per_second, figures[0].cpu / cpu);
            let more = match one_name {
                true => format!(" {changes:.0} | {longest:.1} | {longest_turns:.1} |"),
                false => String::new(),
            };
            self.write(&format!("| {name} | {per_second:.0} | {rate:.2} | {cpu:.1} | {cost:.2} |{more}"));
        }
        self.write("");
    }

    pub fn print(&self) {
        println!("| | target | measured | met |\n|---|---|---|---|\n{}\n{}", self.targets, self.tables);
    }
}
