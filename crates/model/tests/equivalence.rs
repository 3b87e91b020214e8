//! The engine against the models: random sequences of all operations, compared after every step.

use lockkeeper_model::driver::{Seen, run};

/// An endless stream of bytes from a seed (xorshift64*), cut off after `len`.
fn bytes(seed: u64, len: usize) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::iter::repeat_with(move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 56) as u8
    })
    .take(len)
}

/// Runs sequences until `steps` steps are done. A failure names the seed that replays it.
fn steps(steps: u64, draft: bool) -> Seen {
    let mut seen = Seen::default();
    for seed in 0.. {
        if seen.steps >= steps {
            break;
        }
        let run = || run(bytes(seed, 2_000), draft, &mut seen);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
            panic!("the sequence of seed {seed} shows a difference (draft: {draft})");
        }
    }
    seen
}

#[test]
fn scopes_of_any_number_of_names_agree_with_the_rule() {
    let seen = steps(800_000, false);
    println!("{seen:?}");
    assert_eq!(seen.effects.len(), 6, "every kind of effect was seen");
    assert!(seen.effects.values().all(|&count| count > 5_000));
    assert_eq!(seen.refusals.len(), 4, "every kind of refusal was seen");
    assert!(seen.refusals.values().all(|&count| count > 500));
    assert!(seen.deadlocks > 10_000);
}

#[test]
fn single_names_agree_with_the_working_draft() {
    let seen = steps(400_000, true);
    println!("{seen:?}");
    assert_eq!(seen.effects.len(), 6, "every kind of effect was seen");
    assert!(seen.effects.values().all(|&count| count > 1_000));
}
