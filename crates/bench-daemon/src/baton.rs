//! A bare baton: the least that a server of one queue can do. It has one thread, and neither log,
//! names nor sessions. A client sends a byte to ask, is sent one when its turn has come, and sends
//! another when it is done. Its rate is what the system's wake-ups allow.

use rustix::{
    buffer::spare_capacity,
    event::epoll::{CreateFlags, EventData, EventFlags, add, create, wait},
};
use std::{
    collections::{HashMap, VecDeque},
    io::{Read, Write},
    os::unix::net::UnixListener,
};

/// What a client sends to ask.
pub const ASK: u8 = 1;
/// What a client sends when it is done.
pub const DONE: u8 = 2;
/// What a client is sent when its turn has come.
const TURN: u8 = 3;

/// The number of the listener. Clients count from there.
const LISTENER: u64 = 0;

pub fn serve(socket: &str) {
    let (listener, epoll) = (
        UnixListener::bind(socket).expect("the socket is free"),
        create(CreateFlags::empty()).expect("a descriptor"),
    );
    add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN).expect("it is open");
    let (mut clients, mut next) = (HashMap::new(), LISTENER);
    // The first client has its turn.
    let mut queue = VecDeque::new();
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        wait(&epoll, spare_capacity(&mut events), None).expect("it is open");
        for number in events.iter().map(|event| event.data.u64()) {
            if number == LISTENER {
                let (client, _) = listener.accept().expect("a connection");
                next += 1;
                add(&epoll, &client, EventData::new_u64(next), EventFlags::IN).expect("it is open");
                clients.insert(next, client);
                continue;
            }
            let mut bytes = [0; 64];
            let count = (&clients[&number]).read(&mut bytes).unwrap_or(0);
            if count == 0 {
                clients.remove(&number);
            }
            for byte in &bytes[..count] {
                if *byte == ASK {
                    queue.push_back(number);
                } else {
                    queue.pop_front();
                }
                let is_new = *byte == DONE || queue.len() == 1;
                if let Some(first) = queue.front().filter(|_| is_new) {
                    (&clients[first]).write_all(&[TURN]).expect("it waits for its turn");
                }
            }
        }
    }
}
