//! The suite of `protocol`, against three daemons that share a log in etcd: clients of one that
//! does not lead.
//!
//! Left out are `fifo`, `process` and `python`, whose clients have no lease: all have one in a
//! fleet; `crash`, `disk`, `durable` and `namespace`, which are about a daemon's own log; `files`,
//! about one daemon's socket and state; `turns`, which counts the turns on one daemon's thread; and
//! `deaf`: the daemon that relays closes the connection of a client that does not read for a while.

#![allow(dead_code, reason = "what is left out used it")]

#[path = "protocol/client.rs"]
mod client;
#[path = "protocol/daemon.rs"]
mod daemon;
#[path = "protocol/flow.rs"]
mod flow;
#[path = "protocol/handshake.rs"]
mod handshake;
#[path = "protocol/hostile.rs"]
mod hostile;
#[path = "protocol/identity.rs"]
mod identity;
#[path = "protocol/intruders.rs"]
mod intruders;
#[path = "protocol/leases.rs"]
mod leases;
#[path = "protocol/locks.rs"]
mod locks;
#[path = "protocol/network.rs"]
mod network;
#[path = "protocol/pages.rs"]
mod pages;
#[path = "protocol/resume.rs"]
mod resume;
#[path = "protocol/subscribe.rs"]
mod subscribe;
#[path = "protocol/temp.rs"]
mod temp;
#[path = "protocol/web.rs"]
mod web;
