//! The protocol as a stranger meets it: bytes on a Unix socket or a WebSocket, and a real daemon
//! behind it, which is killed for real.
//!
//! Nothing here waits for time to pass: whatever is waited for is a message.

mod client;
#[cfg(target_os = "linux")]
mod crash;
mod daemon;
mod deaf;
#[cfg(target_os = "linux")]
mod disk;
mod durable;
mod fifo;
mod files;
mod flow;
mod handshake;
mod hostile;
mod identity;
mod intruders;
mod leases;
mod locks;
#[cfg(target_os = "linux")]
mod namespace;
mod network;
mod pages;
mod process;
mod python;
mod resume;
mod subscribe;
mod temp;
mod turns;
mod web;
