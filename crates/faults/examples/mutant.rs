//! A daemon that judges wrongly whether a client is alive. `lockkeeper-faults --mutate` starts it,
//! and the check is to notice. The `lockkeeper` command has no such daemon.

use clap::Parser;
use lockkeeper_core::Limits;
use lockkeeper_server::{
    Bytes, Config, HandshakeLimits, Listen,
    sabotage::{self, Mistake},
    serve,
};
use std::{io, net::SocketAddr, path::PathBuf, time::Duration};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    task::LocalSet,
};

/// The arguments of `lockkeeper serve` that the driver gives, after the mistake.
#[derive(Parser)]
struct Args {
    #[arg(value_parser = mistake)]
    mistake: Mistake,
    #[arg(value_parser = ["serve"])]
    command: String,
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    state_dir: PathBuf,
    #[arg(long, value_parser = duration)]
    ttl: Duration,
    #[arg(long)]
    listen: Option<SocketAddr>,
    #[arg(long)]
    share_buckets: bool,
    #[arg(long)]
    sync: bool,
    #[arg(long, value_parser = duration)]
    idle: Option<Duration>,
}

fn mistake(name: &str) -> Result<Mistake, String> {
    match name {
        "busy-is-dead" => Ok(Mistake::BusyIsDead),
        "judge-by-process" => Ok(Mistake::JudgeByProcess),
        _ => Err("not a mistake".into()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let number = |unit| text.strip_suffix(unit)?.parse().ok();
    let duration = number("ms").map(Duration::from_millis).or(number("s").map(Duration::from_secs));
    duration.ok_or_else(|| "not a duration".into())
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let listen =
        args.listen.map(|address| Listen { share_buckets: args.share_buckets, ..Listen::at(address) });
    let config = Config {
        socket: args.socket,
        given: None,
        allow: Vec::new(),
        listen,
        metrics: None,
        state_dir: args.state_dir,
        sync: args.sync,
        ttl: args.ttl,
        ttl_bounds: (args.ttl.min(Duration::from_secs(1)), args.ttl.max(Duration::from_secs(600))),
        idle: args.idle,
        limits: Limits::default(),
        bytes: Bytes::default(),
        handshake: HandshakeLimits::default(),
        store: None,
    };
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        sabotage::make(args.mistake);
        let mut term = signal(SignalKind::terminate())?;
        let stop = async {
            eprintln!("serving");
            term.recv().await;
        };
        serve(config, stop).await.map_err(io::Error::other)
    })
}
