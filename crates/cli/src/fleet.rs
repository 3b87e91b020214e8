//! `lockkeeper fleet`: the daemons that share a store.

use crate::{
    Done,
    args::Fleet,
    exit,
    settings::Settings,
    show,
    table::{Paint, Table},
};
use lockkeeper_server::{LeaderReport, Report};
use std::process::ExitCode;

/// A daemon says every three seconds that it is there.
const LATE: u64 = 15_000;

pub(crate) fn fleet(args: Fleet) -> Done {
    let settings = Settings {
        store: Some(args.store),
        store_ca: args.store_ca,
        store_cert: args.store_cert,
        store_key: args.store_key,
        store_user: args.store_user,
        store_password_file: args.store_password_file,
        ..Settings::default()
    };
    let wrong = |why: String| (exit::USAGE, why);
    let etcd = settings.etcd().map_err(wrong)?.ok_or_else(|| wrong("--store is needed".into()))?;
    let failed = |error: std::io::Error| (exit::SOFTWARE, error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let report = runtime.block_on(lockkeeper_server::report(&etcd));
    let report = report.map_err(|error| (exit::UNAVAILABLE, error.to_string()))?;
    match args.json {
        true => println!("{}", report.to_json()),
        false => show(&report),
    }
    Ok(if is_well(&report) { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn is_well(report: &Report) -> bool {
    let led = report.leader.as_ref().is_some_and(|leader| {
        !leader.vacant && report.daemons.iter().any(|daemon| daemon.url == leader.url && daemon.seen < LATE)
    });
    led && report.trouble.is_empty() && report.etcd.iter().all(|member| member.trouble.is_empty())
}

fn show(report: &Report) {
    let mut daemons = Table::new(["DAEMON", "ROLE", "ENTRIES BEHIND", "VERSION", "SEEN"]);
    for daemon in &report.daemons {
        let leads = report.leader.as_ref().is_some_and(|leader| leader.url == daemon.url && !leader.vacant);
        let (paint, role) = match (daemon.seen > LATE, leads) {
            (true, _) => (Paint::Red, "silent"),
            (false, true) => (Paint::Green, "leads"),
            (false, false) => (Paint::Yellow, "follows"),
        };
        let behind = daemon.lag.to_string();
        let seen = format!("{} ago", show::age(daemon.seen));
        daemons.row(paint, [daemon.url.clone(), role.into(), behind, daemon.version.clone(), seen]);
    }
    print!("{}", daemons.text());
    for trouble in &report.trouble {
        println!("\nTrouble: {trouble}");
    }
    match &report.leader {
        None if !report.trouble.is_empty() => {}
        None => println!("\nNo daemon has led yet: the log is empty."),
        Some(LeaderReport { vacant: true, .. }) => {
            println!("\nNobody leads: the last leader has handed over.")
        }
        Some(LeaderReport { url, position, snapshot, takeover, .. }) => {
            println!("\n{url} leads. The log has {position} entries.");
            if let Some((at, bytes)) = snapshot {
                println!("The newest snapshot is at {at} ({bytes} bytes).");
            }
            println!("Another daemon takes over after {takeover} ms without a sign of it.");
        }
    }
    print!("\n");
    let mut members = Table::new(["ETCD", "ROLE", "VERSION", "SIZE", "TROUBLE"]);
    for member in &report.etcd {
        let paint = if member.trouble.is_empty() { Paint::Green } else { Paint::Red };
        let role = match (&member.version, member.leads) {
            (None, _) => "silent",
            (Some(_), true) => "leads",
            (Some(_), false) => "follows",
        };
        let version = member.version.clone().unwrap_or_else(|| "-".into());
        let size = format!("{:.1} MiB", member.bytes as f64 / f64::from(1 << 20));
        members.row(paint, [member.member.clone(), role.into(), version, size, member.trouble.join("; ")]);
    }
    print!("{}", members.text());
}
