//! Whatever the bytes are: no panic, no message with something behind it, no more memory than the
//! bytes can have asked for; and what is understood is understood in one way.

use lockkeeper_wire::{
    frame,
    v2::{ToClient, ToServer},
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

const VECTORS: &str = include_str!("../../../docs/protocol-vectors.txt");

#[test]
fn a_truncated_message_is_no_message() {
    for message in messages() {
        for length in 0..message.len() {
            assert!(!understood(&message[..length]), "{:02x?} of {message:02x?}", &message[..length]);
        }
    }
}

#[test]
fn a_message_with_something_behind_it_is_no_message() {
    for message in messages() {
        for more in [&b"\0"[..], b"\xc0", b"\x90", &message] {
            assert!(!understood(&[&message, more].concat()), "{message:02x?} and {more:02x?}");
        }
    }
}

#[test]
fn a_frame_is_whole_or_awaited_or_too_long() {
    let mut framed = Vec::new();
    for message in messages() {
        framed.clear();
        frame::append(&mut framed, |out| out.extend(&message));
        for length in 0..framed.len() {
            assert_eq!(frame::first(&framed[..length], frame::MAX), Ok(None));
        }
        assert_eq!(frame::first(&framed, frame::MAX), Ok(Some((&message[..], framed.len()))));
        if let Some(less) = message.len().checked_sub(1) {
            assert!(frame::first(&framed[..4], less).is_err(), "told by the length alone");
        }
    }
    assert!(frame::first(&u32::MAX.to_be_bytes(), frame::MAX_TO_CLIENT).is_err());
}

#[test]
fn a_claimed_length_is_not_believed() {
    // Each form of MessagePack that has a length, with lengths up to the greatest; alone, and in
    // the place of every byte of every message.
    let claims: [&[u8]; 12] = [
        b"\x9f",
        b"\xbf",
        b"\xc4\xff",
        b"\xc5\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc6\x7f\xff\xff\xff",
        b"\xd9\xff",
        b"\xda\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdc\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ];
    for claim in claims {
        assert!(!understood(claim));
        for message in messages() {
            for at in 0..message.len() {
                understood(&[&message[..at], claim, &message[at + 1..]].concat());
            }
        }
    }
    // An array as long as the message is, so that its length can be believed, of which no element
    // is right.
    for kind in [&b"\x97\x01\x01\x01"[..], b"\x92\x01", b"\x96\x0b\x01"] {
        let length = 1_000_000_u32;
        let elements = vec![0xc0; length as usize + 3];
        understood(&[kind, b"\xdd", &length.to_be_bytes(), &elements].concat());
    }
}

#[test]
fn random_bytes_are_refused_or_understood_in_one_way() {
    let mut random = Random(1);
    let mut bytes = Vec::new();
    for _ in 0..300_000 {
        bytes.clear();
        let length = random.below(40);
        bytes.extend((0..length).map(|_| random.byte()));
        // Most random bytes are no array of the right length: help half of them that far.
        if length > 1 && random.below(2) == 0 {
            bytes[0] = 0x91 + random.byte() % 10;
            bytes[1] = random.byte() % 16;
        }
        understood(&bytes);
    }
}

#[test]
fn mutated_messages_are_refused_or_understood_in_one_way() {
    let mut random = Random(2);
    let messages = messages();
    let mut accepted = 0;
    for _ in 0..300_000 {
        let mut bytes = messages[random.below(messages.len())].clone();
        for _ in 0..=random.below(3) {
            mutate(&mut bytes, &messages, &mut random);
        }
        accepted += u32::from(understood(&bytes));
    }
    assert!(accepted > 10_000, "mutations that leave nothing to understand try little: {accepted}");
}

fn mutate(bytes: &mut Vec<u8>, messages: &[Vec<u8>], random: &mut Random) {
    if bytes.is_empty() {
        return bytes.push(random.byte());
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] = random.byte(),
        1 => bytes[at] ^= 1 << random.below(8),
        2 => _ = bytes.remove(at),
        3 => bytes.insert(at, random.byte()),
        4 => bytes.truncate(at),
        // The end of another message.
        _ => {
            let other = &messages[random.below(messages.len())];
            bytes.truncate(at);
            bytes.extend(&other[random.below(other.len())..]);
        }
    }
}

/// Bytes of memory that a byte of a message may take. An entry of a snapshot is the largest thing
/// for its bytes, and the vector that it is in doubles.
const MEMORY: usize = 64;

/// Whether the bytes are a message of either side. What is understood is said again, and understood
/// as the same.
fn understood(bytes: &[u8]) -> bool {
    macro_rules! in_one_way {
        ($side:ident) => {{
            let (message, memory) = measured(|| $side::decode(bytes));
            assert!(memory <= MEMORY * (bytes.len() + 16), "{memory} bytes for a message of {}", bytes.len());
            message.is_ok_and(|message| {
                let mut again = Vec::new();
                message.encode(&mut again);
                assert_eq!($side::decode(&again), Ok(message), "{bytes:02x?}");
                assert!(again.len() <= bytes.len(), "of several ways to say it, the shortest");
                true
            })
        }};
    }
    let (to_server, to_client) = (in_one_way!(ToServer), in_one_way!(ToClient));
    to_server || to_client
}

fn messages() -> Vec<Vec<u8>> {
    let lines = VECTORS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| from_hex(line.rsplit_once(" | ").expect("the last field is the bytes").1)).collect()
}

fn from_hex(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// SplitMix64: the same numbers every time, so that what failed fails again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("it is below a usize")
    }
}

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
#[allow(unsafe_code, reason = "an allocator that counts can be written in no other way")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` results in, and how many bytes it allocated on the way.
fn measured<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let before = ALLOCATED.get();
    let result = work();
    (result, ALLOCATED.get() - before)
}
