//! Rights of network clients: their tokens, and the keys that sign these.
//!
//! A token is a JSON Web Token (RFC 7519), signed with HS256 or EdDSA. The key determines the
//! algorithm, never the token.

use crate::daemon::random;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use lockkeeper_service::Rights;
use ring::{hmac, signature};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The rights in a token.
#[derive(Clone, Debug, Default)]
pub struct Permit {
    /// The names of buckets; a trailing `*` matches any suffix.
    pub buckets: Vec<String>,
    /// Whether locks may be stolen.
    pub steal: bool,
    /// Whether locks may be released by force.
    pub force_release: bool,
    /// Whether it shows what others said of themselves.
    pub inspect: bool,
    /// The subject, which other clients see.
    pub subject: Option<String>,
    /// The daemon that it is for.
    pub audience: Option<String>,
}

/// The rights and the identity of a token's bearer.
pub(crate) struct Bearer {
    pub(crate) rights: Rights,
    pub(crate) subject: Option<String>,
}

/// The audience of a token: one, or several.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

/// A new key set, with one key for HS256. Any process that can read it can make tokens.
pub fn new_keys() -> String {
    let (id, key) = (u32::from_le_bytes(random()), URL_SAFE_NO_PAD.encode(random::<32>()));
    format!("{{\"keys\":[{{\"kty\":\"oct\",\"alg\":\"HS256\",\"kid\":\"{id:08x}\",\"k\":\"{key}\"}}]}}\n")
}

/// A token that is valid for `expires`, signed with the first HS256 key of a key set.
///
/// # Errors
///
/// A message if there is no such key.
pub fn sign(keys: &str, permit: Permit, expires: Duration) -> Result<String, String> {
    let keys = Keys::parse(keys)?.keys;
    let secret = keys.iter().find_map(|key| match &key.kind {
        Kind::Hs256(secret) => Some((secret, key.id.clone())),
        Kind::EdDsa(_) => None,
    });
    let (secret, kid) =
        secret.ok_or("the key set has no key for HS256: sign tokens for EdDSA where the private key is")?;
    let exp = now().saturating_add(expires).as_secs_f64().floor();
    let Permit { buckets, steal, force_release, inspect, subject: sub, audience } = permit;
    let aud = audience.map(Audience::One);
    let header = part(&Header { alg: "HS256".into(), kid, crit: None })?;
    let claims = part(&Claims { exp, nbf: None, sub, aud, buckets, steal, force_release, inspect })?;
    let signed = format!("{header}.{claims}");
    let seal = hmac::sign(secret, signed.as_bytes());
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(seal)))
}

/// A part of a token.
fn part(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_vec(value).map(|json| URL_SAFE_NO_PAD.encode(json)).map_err(|error| error.to_string())
}

/// The time since 1970, in which tokens are dated.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The fewest bytes of a key for HS256 (RFC 7518 §3.2).
const SHORTEST: usize = 32;

/// How far the clock of a token's issuer may be ahead of ours.
const AHEAD: Duration = Duration::from_secs(60);

/// The keys whose tokens are good.
pub(crate) struct Keys {
    keys: Vec<Key>,
    /// The audience that tokens must have, if any.
    pub(crate) audience: Option<String>,
}

struct Key {
    id: Option<String>,
    kind: Kind,
}

enum Kind {
    Hs256(hmac::Key),
    EdDsa(signature::UnparsedPublicKey<Vec<u8>>),
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<WebKey>,
}

#[derive(Deserialize)]
struct WebKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    k: Option<String>,
    x: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    kid: Option<String>,
    #[serde(skip_serializing)]
    crit: Option<serde::de::IgnoredAny>,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    exp: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sub: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<Audience>,
    #[serde(default)]
    buckets: Vec<String>,
    #[serde(default)]
    steal: bool,
    #[serde(default)]
    force_release: bool,
    #[serde(default)]
    inspect: bool,
}

impl Keys {
    /// Reads a JSON Web Key Set (RFC 7517). Keys that are for something else are passed over.
    pub(crate) fn parse(json: &str) -> Result<Self, String> {
        let set: KeySet = serde_json::from_str(json).map_err(|error| format!("not a key set: {error}"))?;
        let keys: Vec<Key> =
            set.keys.into_iter().filter_map(|key| key.read().transpose()).collect::<Result<_, _>>()?;
        match keys.is_empty() {
            true => Err("the key set has no key for HS256 (kty oct) or EdDSA (kty OKP, crv Ed25519)".into()),
            false => Ok(Self { keys, audience: None }),
        }
    }

    /// The rights of a token's bearer in a bucket.
    pub(crate) fn check(&self, token: Option<&str>, bucket: &str) -> Result<Bearer, String> {
        self.claims(token)?.bearer(bucket)
    }

    /// Whether the bearer of a token may see what there is, in one bucket at least.
    pub(crate) fn check_inspect(&self, token: Option<&str>) -> Result<(), String> {
        match self.claims(token)?.inspect {
            true => Ok(()),
            false => Err("no right to inspect: the token does not allow it".into()),
        }
    }

    /// The claims of a token that is valid now.
    fn claims(&self, token: Option<&str>) -> Result<Claims, String> {
        let token = token.ok_or("a token is needed")?;
        let claims = self
            .verify(token)
            .ok_or("the token is malformed, or was not signed with a key of this daemon")?;
        let now = now();
        if now.as_secs_f64() >= claims.exp {
            return Err("the token has expired: get a new one".into());
        }
        if claims.nbf.is_some_and(|begin| (now + AHEAD).as_secs_f64() < begin) {
            return Err("the token is not valid yet".into());
        }
        self.check_audience(claims.aud.as_ref())?;
        Ok(claims)
    }

    /// The current rights of an earlier accepted token: none if its key was removed.
    pub(crate) fn check_again(&self, token: &str, bucket: &str) -> Option<Rights> {
        let claims = self.verify(token)?;
        self.check_audience(claims.aud.as_ref()).ok()?;
        claims.bearer(bucket).ok().map(|bearer| bearer.rights)
    }

    fn check_audience(&self, audience: Option<&Audience>) -> Result<(), String> {
        let named = match audience {
            None => &[],
            Some(Audience::One(one)) => std::slice::from_ref(one),
            Some(Audience::Several(several)) => &several[..],
        };
        match &self.audience {
            Some(own) if named.contains(own) => Ok(()),
            Some(own) => Err(format!("the token is not for this daemon: its audience has to be {own}")),
            None if named.is_empty() => Ok(()),
            None => Err("the token names an audience, and this daemon has none (--audience)".into()),
        }
    }

    /// The claims of a token that a key of ours has signed.
    fn verify(&self, token: &str) -> Option<Claims> {
        let (signed, seal) = token.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: Header = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        let seal = URL_SAFE_NO_PAD.decode(seal).ok()?;
        let fits = |key: &&Key| header.kid.is_none() || header.kid == key.id;
        let good = self.keys.iter().filter(fits).any(|key| match (&key.kind, &header.alg[..]) {
            (Kind::Hs256(key), "HS256") => hmac::verify(key, signed.as_bytes(), &seal).is_ok(),
            (Kind::EdDsa(key), "EdDSA" | "Ed25519") => key.verify(signed.as_bytes(), &seal).is_ok(),
            _ => false,
        });
        // Unknown critical headers must be refused, and none is known here.
        let good = good && header.crit.is_none();
        good.then(|| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()).flatten()
    }
}

impl Claims {
    fn bearer(self, bucket: &str) -> Result<Bearer, String> {
        let Self { buckets, steal, force_release, inspect, sub: subject, .. } = self;
        match buckets.iter().any(|pattern| matches(pattern, bucket)) {
            true => Ok(Bearer { rights: Rights { steal, force_release, inspect }, subject }),
            false => Err("the token is not for this bucket".into()),
        }
    }
}

impl WebKey {
    /// The key, if it is for tokens like ours.
    fn read(self) -> Result<Option<Key>, String> {
        let name = self.kid.as_deref().unwrap_or("without a kid").to_owned();
        let bytes = |value: Option<String>, what: &str| {
            let value = value.ok_or_else(|| format!("the key {name} has no {what}"))?;
            URL_SAFE_NO_PAD.decode(value).map_err(|error| format!("{what} of the key {name}: {error}"))
        };
        let kind = match (&self.kty[..], self.crv.as_deref(), self.alg.as_deref()) {
            ("oct", _, None | Some("HS256")) => {
                let key = bytes(self.k, "k")?;
                if key.len() < SHORTEST {
                    return Err(format!(
                        "the key {name} has {} bytes: {SHORTEST} at least are needed",
                        key.len()
                    ));
                }
                Kind::Hs256(hmac::Key::new(hmac::HMAC_SHA256, &key))
            }
            ("OKP", Some("Ed25519"), None | Some("EdDSA" | "Ed25519")) => {
                let key = bytes(self.x, "x")?;
                if key.len() != signature::ED25519_PUBLIC_KEY_LEN {
                    return Err(format!("x of the key {name} has {} bytes, not 32", key.len()));
                }
                Kind::EdDsa(signature::UnparsedPublicKey::new(&signature::ED25519, key))
            }
            _ => return Ok(None),
        };
        Ok(Some(Key { id: self.kid, kind }))
    }
}

/// A trailing `*` matches any suffix.
pub(crate) fn matches(pattern: &str, bucket: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => bucket.starts_with(beginning),
        None => pattern == bucket,
    }
}
