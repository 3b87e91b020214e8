//! Tokens and key sets: none of them panics; what was signed is accepted, and nothing else is.
//!
//! The first line of an input is a token, the second a bucket; the rest is a key set. A token with
//! a `|` is an edit of a good token: libFuzzer cannot sign, but it can change what was signed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lockkeeper_server::{Permit, fuzzing::rights, sign};
use std::{sync::LazyLock, time::Duration};

const KEYS: &str = r#"{"keys":[{"kty":"oct","kid":"a","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
    {"kty":"OKP","crv":"Ed25519","kid":"b","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// Longer than anybody fuzzes.
const YEARS: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

static SIGNED: LazyLock<String> = LazyLock::new(|| {
    let permit = Permit { buckets: vec!["*".into()], steal: true, ..Permit::default() };
    sign(KEYS, permit, YEARS).expect("the first key is for HS256")
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut parts = text.splitn(3, '\n');
    let token = parts.next().unwrap_or_default();
    let (bucket, keys) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());

    let _ = rights(keys, token, bucket);
    assert!(rights(KEYS, token, bucket).is_err() || token == *SIGNED, "forged: {token}");
    if let Some((edit, insertion)) = token.split_once('|') {
        let edited = splice(&SIGNED, edit.as_bytes(), insertion);
        let expected = (edited == *SIGNED).then_some([true, false, false]);
        assert_eq!(rights(KEYS, &edited, bucket).ok(), expected, "{edited}");
    }

    let [steal, force_release, inspect] = [1, 2, 4].map(|bit| token.len() & bit != 0);
    let permit = Permit { buckets: vec![bucket.into()], steal, force_release, inspect, ..Permit::default() };
    let signed = sign(KEYS, permit, YEARS).expect("the first key is for HS256");
    assert_eq!(rights(KEYS, &signed, bucket), Ok([steal, force_release, inspect]));
});

/// A text with some of its bytes replaced: the edit's first byte says where, its second how many.
fn splice(text: &str, edit: &[u8], insertion: &str) -> String {
    let start = edit.first().map_or(0, |start| usize::from(*start) * 2 % (text.len() + 1));
    let end = edit.get(1).map_or(start, |count| (start + usize::from(*count)).min(text.len()));
    [&text[..start], insertion, &text[end..]].concat()
}
